"""The verifier of a simulation: one sandboxed process for all nodes, asked one thing at a time.

It is supervised on a thread of its own, by real time, while the simulation stands still and waits. What
was scored once is not scored again: the scorer is the same for all nodes, and so is what it says.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from swarmd.config import Config
from swarmd.rewards.messages import INITIALISE, SCORE, VerifierSettings
from swarmd.tasks.manifest import Manifest
from swarmd.workers.framing import Method
from swarmd.workers.supervisor import Worker, WorkerLimits

__all__ = ["VerifierProcess"]

_REMEMBERED = 16_384
"""Replies. A group is asked for by each node that receives it, within a few rounds."""


class VerifierProcess:
    """A running verifier; `call` answers for `VerifierPool`. A context manager.

    Entering raises ConfigError when the manifest's tasks cannot be generated, WorkerError when it
    does not start.
    """

    def __init__(self, config: Config, manifest: Manifest) -> None:
        rewards = config.rewards
        self._settings = VerifierSettings(
            manifest.tasks, rewards.strict, rewards.timeout_seconds, rewards.memory_bytes
        )
        self._start_timeout_seconds = config.workers.start_timeout_seconds
        self._worker = Worker("verifier", "swarmd.entrypoints.verifier", WorkerLimits(), self._initialise)
        self._thread = threading.Thread(target=self._run, name="verifier", daemon=True)
        self._started: Future[None] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._remembered: OrderedDict[Any, Any] = OrderedDict()

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def call(self, method: Method[Any, Any], request: Any, timeout_seconds: float) -> Any:
        """Asks and waits, as `Worker.call` does; the caller's event loop stands still meanwhile."""
        if method is SCORE and request in self._remembered:
            self._remembered.move_to_end(request)
            return self._remembered[request]
        assert self._loop is not None
        asked = asyncio.run_coroutine_threadsafe(
            self._worker.call(method, request, timeout_seconds), self._loop
        )
        reply = asked.result()
        if method is SCORE:
            self._remembered[request] = reply
            if len(self._remembered) > _REMEMBERED:
                self._remembered.popitem(last=False)
        return reply

    async def _initialise(self, worker: Worker) -> None:
        await worker.call(INITIALISE, self._settings, self._start_timeout_seconds)

    def _run(self) -> None:
        asyncio.run(self._live())

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        running = asyncio.create_task(self._worker.run())
        try:
            ready = asyncio.create_task(self._worker.wait_ready())
            await asyncio.wait({ready, running}, return_when=asyncio.FIRST_COMPLETED)
            failure = running.exception() if running.done() else ready.exception()
            if failure is not None:
                self._started.set_exception(failure)
                ready.cancel()
                return
            self._started.set_result(None)
            await self._stop.wait()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
