"""One life of a worker process, as the daemon sees it: started, called, and at the end dead for a
reason that a person can read. Restarting is the supervisor's business.

What the worker prints goes to its log file, which is bounded; the last line of it is kept as the
worker's last words.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from swarmd.errors import WorkerError, WorkerRefusalError
from swarmd.workers.framing import (
    HEADER,
    Call,
    FrameError,
    Progress,
    Refusal,
    Result,
    Stop,
    ToDaemon,
    ToWorker,
    body_length,
    pack,
    unpack_to_daemon,
)

Outcome = TypeVar("Outcome")

MAX_LOG_BYTES = 5_000_000
"""A worker's log is moved to NAME.1 when it is longer; one old file is kept."""

KILLED = "was killed by SIGKILL (out of memory?)"
"""What is said of a worker that somebody else has killed."""

_BARE = frozenset(
    ("PATH", "LANG", "TZ", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONHASHSEED", "VIRTUAL_ENV")
)
_BARE_PREFIX = "LC_"
_EXIT_GRACE_SECONDS = 5.0
"""From closing its socket a worker has this long to exit."""
_DEADLINE_PARTS = 10


@dataclass
class WorkerOutput:
    """Where a worker's prints go: a bounded file, and the last line in memory."""

    path: Path | None
    last_line: str = ""
    _rest: bytes = field(default=b"", repr=False)

    def write(self, data: bytes) -> None:
        """Takes what the worker printed. A full disk loses log lines and nothing else."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-4096:]
        for line in (*lines, self._rest):
            text = "".join(c if c.isprintable() else " " for c in line.decode("utf-8", "replace")).strip()
            if text:
                self.last_line = text[:300]
        if self.path is not None:
            with contextlib.suppress(OSError):
                if self.path.exists() and self.path.stat().st_size > MAX_LOG_BYTES:
                    self.path.replace(self.path.with_name(self.path.name + ".1"))
                with self.path.open("ab") as file:
                    file.write(data)


def bare_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What Python needs of an environment to run as it runs here. Tokens and passwords stay behind."""
    return {
        name: value for name, value in environment.items() if name in _BARE or name.startswith(_BARE_PREFIX)
    }


class WorkerProcess:
    """A started process. Made by `start`; `run` must run for calls to be answered."""

    def __init__(
        self,
        name: str,
        process: asyncio.subprocess.Process,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        prints: tuple[asyncio.StreamReader, asyncio.ReadTransport],
        output: WorkerOutput,
        on_progress: Callable[[str], None],
    ) -> None:
        self.name = name
        self.pid = process.pid
        self.frames_received = 0
        """Grows while the worker gives signs of life."""
        self.heard = asyncio.Event()
        """Set by the first of them: the process runs and is bound to our life."""
        self._process = process
        self._reader, self._writer = streams
        self._prints, self._print_pipe = prints
        self._output = output
        self._on_progress = on_progress
        self._calling = asyncio.Lock()
        self._exchanges = asyncio.TaskGroup()
        self._call_id = 0
        self._answer: asyncio.Future[Result | Refusal | None] | None = None
        self._kill_reason: str | None = None
        self._death: str | None = None
        self._dead = asyncio.Event()

    @classmethod
    async def start(
        cls,
        name: str,
        module: str,
        environment: Mapping[str, str],
        output: WorkerOutput,
        on_progress: Callable[[str], None],
    ) -> WorkerProcess:
        """Starts `python -m module --fd N` in its own session, with this environment and no more.

        Raises WorkerError when it cannot.
        """
        ours, theirs = socket.socketpair()
        # Not asyncio's own pipe: with that, wait() also waits for whoever else holds the pipe open.
        print_reader, print_writer = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "swarmd.workers.launch", module),
                *("--fd", str(theirs.fileno()), "--parent", str(os.getpid())),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=print_writer,
                stderr=print_writer,
                pass_fds=(theirs.fileno(),),
                # Its own session: Ctrl-C in the terminal reaches the daemon alone, and one killpg
                # also ends what the worker forked.
                start_new_session=True,
                env={"PYTHONUNBUFFERED": "1", **environment},
            )
        except OSError as error:
            ours.close()
            os.close(print_reader)
            raise WorkerError(f"{name} worker could not be started: {error}") from error
        finally:
            theirs.close()
            os.close(print_writer)
        ours.setblocking(False)
        streams = await asyncio.open_unix_connection(sock=ours)
        prints = asyncio.StreamReader()
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(prints), os.fdopen(print_reader, "rb", buffering=0)
        )
        return cls(name, process, streams, (prints, pipe), output, on_progress)

    @property
    def is_dead(self) -> bool:
        """Whether the process has ended."""
        return self._death is not None

    async def run(self) -> str:
        """Serves the process until it is dead. Returns why it died, as half a sentence."""
        try:
            async with self._exchanges, asyncio.TaskGroup() as tasks:
                frames = tasks.create_task(self._read_frames())
                prints = tasks.create_task(self._read_output())
                await self._process.wait()
                self._signal(signal.SIGKILL)  # What it forked and left behind.
                await asyncio.wait({prints}, timeout=1.0)
                self._bury(self._describe_death())
                frames.cancel()
                prints.cancel()
        finally:
            self.kill("was abandoned")
            self._bury("was abandoned")
            self._writer.close()
            self._print_pipe.close()
        return self._death or ""

    async def request(self, method: str, request: bytes, timeout_seconds: float) -> bytes:
        """Asks for `method` and waits for the answer; requests queue. The deadline counts from when
        the request is sent; passing it kills the process.

        Raises WorkerError, or its subclass WorkerRefusalError when the worker itself said no.
        """
        if self._death is not None:
            raise WorkerError(f"{self.name} worker {self._death}")
        # A task of its own: a caller that is cancelled must not let the next call overtake this one.
        exchange = self._exchanges.create_task(self._exchange(method, request, timeout_seconds))
        try:
            outcome = await asyncio.shield(exchange)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if exchange.cancelled() and task is not None and not task.cancelling():
                raise WorkerError(f"{self.name} worker was stopped") from None
            raise
        if isinstance(outcome, WorkerError):
            raise outcome
        return outcome

    def kill(self, reason: str) -> None:
        """Ends the process and all it started, now. `run` then returns the first such reason."""
        if self._process.returncode is None:
            self._kill_reason = self._kill_reason or reason
            self._signal(signal.SIGKILL)

    async def stop(self, timeout_seconds: float) -> None:
        """Asks the process to end, then tells it to, then makes it. `run` must be running."""
        self._kill_reason = self._kill_reason or "was stopped"
        try:
            for insist in (self._ask_to_stop, lambda: self._signal(signal.SIGTERM)):
                insist()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(timeout_seconds / 2):
                        await self._process.wait()
                        return
        finally:
            self._signal(signal.SIGKILL)

    async def _exchange(self, method: str, request: bytes, timeout_seconds: float) -> bytes | WorkerError:
        async with self._calling:
            if self._death is not None:
                return WorkerError(f"{self.name} worker {self._death}")
            self._call_id += 1
            answer = self._answer = asyncio.get_running_loop().create_future()
            reply: Result | Refusal | None = None
            try:
                reply = await _within(
                    timeout_seconds, self._ask(Call(self._call_id, method, request), answer)
                )
            except TimeoutError:
                self.kill(f"did not answer {method} within {timeout_seconds:g} s")
            if reply is None:
                await self._dead.wait()
                return WorkerError(f"{self.name} worker {self._death}")
            if isinstance(reply, Refusal):
                return WorkerRefusalError(f"{self.name} worker: {reply.message}", reply.error, reply.message)
            return reply.reply

    async def _ask(self, call: Call, answer: Awaitable[Result | Refusal | None]) -> Result | Refusal | None:
        await self._send(call)
        return await answer

    async def _send(self, message: ToWorker) -> None:
        if not self._writer.is_closing():
            with contextlib.suppress(ConnectionError):  # Then it is dead, which run() sees.
                self._writer.write(pack(message))
                await self._writer.drain()

    async def _read_frames(self) -> None:
        try:
            while True:
                header = await self._reader.readexactly(HEADER.size)
                body = await self._reader.readexactly(body_length(header))
                self._receive(unpack_to_daemon(body))
        except FrameError as error:
            self.kill(f"sent nonsense: {error}")
        except (asyncio.IncompleteReadError, ConnectionError):
            await asyncio.sleep(_EXIT_GRACE_SECONDS)
            self.kill("closed its socket but did not exit")

    def _receive(self, message: ToDaemon) -> None:
        self.frames_received += 1
        self.heard.set()
        if isinstance(message, Progress):
            self._on_progress(message.text)
        elif isinstance(message, Result | Refusal) and message.id == self._call_id:
            self._settle(message)

    async def _read_output(self) -> None:
        while data := await self._prints.read(1 << 16):
            self._output.write(data)

    def _bury(self, reason: str) -> None:
        self._death = self._death or reason
        self._dead.set()
        self._settle(None)

    def _settle(self, reply: Result | Refusal | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(reply)

    def _ask_to_stop(self) -> None:
        if not self._writer.is_closing():
            self._writer.write(pack(Stop()))

    def _signal(self, number: signal.Signals) -> None:
        # The worker leads its process group, and a group outlives its leader.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _describe_death(self) -> str:
        code = self._process.returncode or 0
        if self._kill_reason is not None:
            reason = self._kill_reason
        elif code < 0:
            name = signal.Signals(-code).name
            reason = KILLED if name == "SIGKILL" else f"was killed by {name}"
        else:
            reason = f"exited with code {code}" if code else "ended by itself"
        return f"{reason}; its last words: {self._output.last_line}" if self._output.last_line else reason


async def _within(seconds: float, work: Coroutine[Any, Any, Outcome]) -> Outcome:
    """What `work` returns. Raises TimeoutError when it takes longer.

    The deadline has parts, of which a pause of this process itself uses up one: what came in the
    meantime is heard in the next.
    """
    task = asyncio.ensure_future(work)
    try:
        for _ in range(_DEADLINE_PARTS):
            done, _pending = await asyncio.wait((task,), timeout=seconds / _DEADLINE_PARTS)
            if done:
                return task.result()
        raise TimeoutError
    finally:
        task.cancel()
