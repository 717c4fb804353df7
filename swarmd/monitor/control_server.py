"""The node's side of the control socket: status, peers, checkpoint, stop. It answers from values that
the node hands it and decides nothing itself. Only this user can reach it: the folder of the socket is
private.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from pathlib import Path
from types import TracebackType

import msgspec
from aiohttp import web

from swarmd.errors import SwarmdError
from swarmd.monitor.control import CheckpointReply, PeerJudged, StopReply
from swarmd.monitor.status import NodeStatus, PeerStatus


class ControlServer:
    """Serves the control socket for as long as its block lasts."""

    def __init__(
        self,
        control_socket: Path,
        *,
        status: Callable[[], NodeStatus],
        peers: Callable[[], Sequence[PeerStatus]],
        judge: Callable[[str, str], str],
        save: Callable[[], Awaitable[str]],
        stop: Callable[[], None],
    ) -> None:
        """`status` and `peers` are called for each question, `stop` when somebody asks the node to end.

        `judge` takes the operator's word on a peer (ban, allow, forget) and returns the peer's state;
        `save` writes a checkpoint and returns its path. Both may raise SwarmdError.
        """
        self._socket = control_socket
        self._status = status
        self._peers = peers
        self._judge = judge
        self._save = save
        self._stop = stop
        application = web.Application(client_max_size=64_000)
        application.router.add_get("/status", self._answer_status)
        application.router.add_get("/peers", self._answer_peers)
        application.router.add_post("/peers/{peer_id}/{word}", self._answer_judge)
        application.router.add_post("/checkpoint", self._answer_checkpoint)
        application.router.add_post("/stop", self._answer_stop)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)

    async def __aenter__(self) -> ControlServer:
        """Open the socket. Raises SwarmdError when that is not possible."""
        # The home is locked by now: a socket that is there was left by a run that was killed.
        self._socket.unlink(missing_ok=True)
        await self._runner.setup()
        try:
            await web.UnixSite(self._runner, self._socket).start()
            self._socket.chmod(0o600)
        except OSError as error:
            await self._runner.cleanup()
            raise SwarmdError(f"control socket {self._socket} cannot be opened: {error}") from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the socket and remove it."""
        await self._runner.cleanup()
        self._socket.unlink(missing_ok=True)

    async def _answer_status(self, request: web.Request) -> web.Response:
        return _json(self._status())

    async def _answer_peers(self, request: web.Request) -> web.Response:
        return _json(tuple(self._peers()))

    async def _answer_judge(self, request: web.Request) -> web.Response:
        peer_id, word = request.match_info["peer_id"], request.match_info["word"]
        try:
            return _json(PeerJudged(peer_id, self._judge(peer_id, word)))
        except SwarmdError as error:
            raise web.HTTPBadRequest(text=str(error)) from error

    async def _answer_checkpoint(self, request: web.Request) -> web.Response:
        try:
            return _json(CheckpointReply(await self._save()))
        except SwarmdError as error:
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text=str(error))

    async def _answer_stop(self, request: web.Request) -> web.Response:
        self._stop()
        return _json(StopReply(os.getpid()))


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
