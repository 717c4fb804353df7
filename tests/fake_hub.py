"""A model hub on the loopback address: the endpoints that huggingface_hub asks for, and ways to fail."""

import asyncio
import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = ".safetensors"


@dataclass
class FakeHub:
    """Serves repositories, name to files. What it was asked for is in `asked`."""

    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refusal: tuple[int, str] | None = None
    """Status and X-Error-Code of every answer."""
    drop_after: int | None = None
    """Weight files break off after so many bytes of an answer."""
    drops: int = 10**9
    """How many answers break off; later ones are whole."""
    damaged: bool = False
    """One bit of every weight file arrives wrong."""
    silent: bool = False
    """It takes requests and never answers."""
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    """Method, path and range of each request."""
    url: str = ""

    def add(self, name: str, folder: Path) -> None:
        """Serve a model folder as repository `name`."""
        self.repositories[name] = {path.name: path.read_bytes() for path in folder.iterdir()}

    async def model(self, request: web.Request) -> web.StreamResponse:
        files = await self._files(request)
        siblings = [{"rfilename": name, **_described(name, content)} for name, content in files.items()]
        name = f"{request.match_info['owner']}/{request.match_info['name']}"
        return web.json_response({"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings})

    async def file(self, request: web.Request) -> web.StreamResponse:
        files = await self._files(request)
        name = request.match_info["file"]
        if name not in files:
            raise web.HTTPNotFound(headers={"X-Error-Code": "EntryNotFound"})
        content = files[name]
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{_digest(name, content)}"', "Accept-Ranges": "bytes"}
        if request.method == "HEAD":
            return web.Response(headers=headers | {"Content-Length": str(len(content))})
        start = request.http_range.start or 0
        rest = bytearray(content[start:])
        if self.damaged and name.endswith(LARGE) and rest:
            rest[-1] ^= 1
        headers["Content-Length"] = str(len(rest))
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        response = web.StreamResponse(status=206 if start else 200, headers=headers)
        await response.prepare(request)
        if self.drop_after is not None and self.drops > 0 and name.endswith(LARGE):
            self.drops -= 1
            await response.write(bytes(rest[: self.drop_after]))
            assert request.transport is not None
            request.transport.close()
            return response
        await response.write(bytes(rest))
        await response.write_eof()
        return response

    async def _files(self, request: web.Request) -> dict[str, bytes]:
        self.asked.append((request.method, request.path, request.headers.get("Range", "")))
        if self.silent:
            await asyncio.sleep(60)
        if self.refusal is not None:
            status, code = self.refusal
            raise _Refusal(status, code)
        name = f"{request.match_info['owner']}/{request.match_info['name']}"
        if name not in self.repositories:
            raise _Refusal(401, "RepoNotFound")
        return self.repositories[name]

    @contextmanager
    def running(self) -> Iterator["FakeHub"]:
        """Serve from a thread while the block runs; `url` says where."""
        loop, ready = asyncio.new_event_loop(), threading.Event()

        async def serve() -> web.AppRunner:
            application = web.Application(middlewares=[_refuse])
            for path, handler in (
                ("/api/models/{owner}/{name}", self.model),
                ("/api/models/{owner}/{name}/revision/{revision}", self.model),
                ("/{owner}/{name}/resolve/{revision}/{file:.+}", self.file),
            ):
                application.router.add_route("*", path, handler)
            runner = web.AppRunner(application, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            ready.set()
            return runner

        def run() -> None:
            asyncio.set_event_loop(loop)
            runner = loop.run_until_complete(serve())
            loop.run_forever()
            loop.run_until_complete(runner.cleanup())
            loop.close()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        ready.wait()
        try:
            yield self
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()


class _Refusal(Exception):  # noqa: N818 # It is an answer.
    pass


@web.middleware
async def _refuse(request: web.Request, handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except _Refusal as refusal:
        status, code = refusal.args
        return web.json_response(
            {"error": code}, status=status, headers={"X-Error-Code": code} if code else {}
        )


def _digest(name: str, content: bytes) -> str:
    if name.endswith(LARGE):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _described(name: str, content: bytes) -> dict[str, object]:
    if not name.endswith(LARGE):
        return {"size": len(content), "blobId": _digest(name, content)}
    large = {"sha256": _digest(name, content), "size": len(content), "pointerSize": 134}
    return {"size": len(content), "blobId": "0" * 40, "lfs": large}
