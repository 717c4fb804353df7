"""Keeps one worker process running: starts it, initialises it, watches it, and starts it again
with back-off when it died. What was being asked of it then fails with a WorkerError; what is asked
next waits for the new process.

A worker that fails too often ends the node: so many times in a short time, or so many times in a row
without any work done between, however long its starts take.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from swarmd import errors
from swarmd.errors import (
    CheckpointError,
    ConfigError,
    GenerationError,
    ModelError,
    SwarmdError,
    TrainingError,
    WeightChannelError,
    WorkerBudgetError,
    WorkerError,
    WorkerRefusalError,
)
from swarmd.workers.connection import WorkerOutput, WorkerProcess, bare_environment
from swarmd.workers.framing import Method, Reply, Request
from swarmd.workers.occupancy import Occupancy

WorkerState = Literal["starting", "ready", "restarting", "stopped"]

# Errors of an initialisation that trying again does not cure.
_FINAL = (ConfigError, ModelError, CheckpointError, TrainingError, GenerationError, WeightChannelError)


@dataclass(frozen=True)
class WorkerLimits:
    """How patient the supervisor is. The names are those of the config section `workers`."""

    start_timeout_seconds: float = 300.0
    restart_min_seconds: float = 0.2
    restart_max_seconds: float = 30.0
    max_fast_failures: int = 5
    failure_window_seconds: float = 120.0
    stop_timeout_seconds: float = 10.0
    heartbeat_timeout_seconds: float = 60.0
    """A ready worker that gave no sign of life for this long is killed."""


@dataclass(frozen=True)
class WorkerEvent:
    """Something happened to a worker. For the log and the screen."""

    worker: str
    kind: Literal["starting", "progress", "ready", "failed", "stopped"]
    text: str


class Worker:
    """A worker process that is always there, or soon again."""

    def __init__(
        self,
        name: str,
        module: str,
        limits: WorkerLimits,
        on_start: Callable[[Worker], Awaitable[None]],
        *,
        environment: Mapping[str, str] | None = None,
        is_trusted: bool = True,
        log_path: Path | None = None,
        on_event: Callable[[WorkerEvent], None] = lambda event: None,
    ) -> None:
        """`module` is run by this Python. `on_start` initialises each new process by calls to it.

        A worker that is not trusted gets nothing of this process's environment but what Python runs with.
        """
        self.name = name
        self.state: WorkerState = "starting"
        self.pid: int | None = None
        self.restarts = 0
        """How often the process was started again."""
        self.progress = ""
        """What the worker said last that it is busy with."""
        self.occupancy = Occupancy()
        self._module = module
        self._limits = limits
        self._on_start = on_start
        inherited = os.environ if is_trusted else bare_environment(os.environ)
        self._environment = {**inherited, **(environment or {})}
        self._log_path = log_path
        self._on_event = on_event
        self._process: WorkerProcess | None = None
        self._state_changed = asyncio.Event()
        self._has_worked = False
        """In its present life."""
        self._end: SwarmdError | None = None

    async def run(self) -> None:
        """Keeps the worker running until cancelled, then stops it in order.

        Raises WorkerBudgetError after too many failures. An initialisation refused for a
        reason that trying again does not cure (config, model, checkpoint, room for weights) raises that.
        """
        failures: deque[float] = deque()
        in_a_row = 0
        try:
            while True:
                reason = await self._live()
                if self._end is not None:
                    raise self._end
                self._emit("failed", reason)
                now = time.monotonic()
                while (
                    self._has_worked and failures and failures[0] < now - self._limits.failure_window_seconds
                ):
                    failures.popleft()
                failures.append(now)
                in_a_row = 1 if self._has_worked else in_a_row + 1
                if len(failures) >= self._limits.max_fast_failures:
                    raise WorkerBudgetError(self._epitaph(len(failures), now - failures[0], reason))
                self._set_state("restarting")
                await asyncio.sleep(self._pause_seconds(in_a_row))
                self.restarts += 1
        except SwarmdError as error:
            self._end = error
            raise
        finally:
            self._set_state("stopped")
            self._emit("stopped", "" if self._end is None else str(self._end))

    async def call(self, method: Method[Request, Reply], request: Request, timeout_seconds: float) -> Reply:
        """Has the worker answer `method`. Waits until the worker is ready; calls queue.

        The deadline counts from when the worker can begin; passing it kills the process. Raises
        WorkerError when the worker dies, passes the deadline, answers with an error, or has stopped.
        """
        process = _initialising.get()
        if process is None or process is not self._process:
            await self.wait_ready()
            process = self._process
        assert process is not None
        with self.occupancy.request():
            data = await process.request(method.name, msgspec.msgpack.encode(request), timeout_seconds)
        self._has_worked |= method.is_work and process is self._process
        try:
            return msgspec.msgpack.decode(data, type=method.reply_type)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise WorkerError(f"{self.name} worker answered {method.name} wrongly: {error}") from error

    async def wait_ready(self) -> None:
        """Returns when the worker is ready. Raises WorkerError when it has stopped for good."""
        while self.state != "ready" or self._process is None or self._process.is_dead:
            if self.state == "stopped":
                raise WorkerError(str(self._end) if self._end else f"{self.name} worker was stopped")
            await self._state_changed.wait()

    def kill(self, reason: str = "was killed") -> None:
        """End the process now, if there is one. It counts as a failure, for this reason."""
        if self._process is not None:
            self._process.kill(reason)

    async def _live(self) -> str:
        """One process from start to death. Returns why it died."""
        self._set_state("starting" if not self.restarts else "restarting")
        self._emit("starting", self._module)
        self._has_worked = False
        output = WorkerOutput(self._log_path)
        try:
            process = await WorkerProcess.start(
                self.name, self._module, self._environment, output, self._note_progress
            )
        except WorkerError as error:
            return str(error)
        self._process, self.pid = process, process.pid
        try:
            async with asyncio.TaskGroup() as tasks:
                life = tasks.create_task(process.run())
                start = tasks.create_task(self._initialise(process))
                watch = tasks.create_task(self._watch(process))
                try:
                    return await asyncio.shield(life)
                except asyncio.CancelledError:
                    if self.state == "ready":
                        await process.stop(self._limits.stop_timeout_seconds)
                    else:  # Busy loading: it has nothing to save, and hears nothing for a while.
                        process.kill("was stopped")
                    await asyncio.wait({life}, timeout=self._limits.stop_timeout_seconds)
                    raise
                finally:
                    start.cancel()
                    watch.cancel()
        finally:
            self._process, self.pid, self.progress = None, None, ""
            self._set_state("restarting")

    async def _initialise(self, process: WorkerProcess) -> None:
        limit = self._limits.start_timeout_seconds
        _initialising.set(process)
        try:
            async with asyncio.timeout(limit):
                await process.heard.wait()
                await self._on_start(self)
        except TimeoutError:
            process.kill(f"was not ready within {limit:g} s")
        except WorkerRefusalError as error:
            cause = getattr(errors, error.error, SwarmdError)
            if issubclass(cause, _FINAL):
                self._end = cause(error.reason)
            process.kill(f"could not be initialised: {error.reason}")
        except SwarmdError as error:
            if not isinstance(error, WorkerError):
                self._end = error
            process.kill(f"could not be initialised: {error}")
        else:
            self._set_state("ready")
            self._emit("ready", "")

    async def _watch(self, process: WorkerProcess) -> None:
        # Counts looks, not seconds: after a pause of the daemon itself no worker is to blame.
        looks, silent, seen = 10, 0, -1
        while True:
            await asyncio.sleep(self._limits.heartbeat_timeout_seconds / looks)
            silent = silent + 1 if process.frames_received == seen and self.state == "ready" else 0
            seen = process.frames_received
            if silent >= looks:
                process.kill(f"gave no sign of life for {self._limits.heartbeat_timeout_seconds:g} s")

    def _pause_seconds(self, failures_in_a_row: int) -> float:
        pause = self._limits.restart_min_seconds * 2.0 ** (failures_in_a_row - 1)
        # Jitter: workers that died together should not all load their models together.
        return min(pause, self._limits.restart_max_seconds) * random.uniform(0.75, 1.25)

    def _epitaph(self, failures: int, seconds: float, reason: str) -> str:
        where = f" (log: {self._log_path})" if self._log_path is not None else ""
        return (
            f"{self.name} worker failed {failures} times in {seconds:.0f} s; the last time it {reason}{where}"
        )

    def _note_progress(self, text: str) -> None:
        self.progress = text
        self._emit("progress", text)

    def _set_state(self, state: WorkerState) -> None:
        if state != self.state:
            self.state = state
            self._state_changed.set()
            self._state_changed = asyncio.Event()

    def _emit(self, kind: Literal["starting", "progress", "ready", "failed", "stopped"], text: str) -> None:
        self._on_event(WorkerEvent(self.name, kind, text))


# The process whose on_start is running, in that task and those it starts: it may call before ready.
_initialising: ContextVar[WorkerProcess | None] = ContextVar("initialising", default=None)
