"""Several runs at a time, each in a process of its own. A run that is broken off leaves nothing behind, and
is begun again the next time.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from swarmd.errors import SwarmdError, WorkerError, WorkerRefusalError
from swarmd.simulate.experiment import Folder
from swarmd.simulate.messages import RUN, Run, RunReply, RunRequest
from swarmd.workers.supervisor import Worker, WorkerEvent, WorkerLimits

__all__ = ["Progress", "run_all"]

_RUN_SECONDS = 7 * 86_400.0
"""Longest run; a process that hangs is found by its missing signs of life long before."""
_LIMITS = WorkerLimits(stop_timeout_seconds=1.0)
"""A run that is told to stop has nothing to save."""


@dataclass
class Progress:
    """How far the runs are."""

    runs: int
    """To do, when this began."""
    done: int = 0
    began: float = field(default_factory=time.monotonic)
    under_way: dict[str, float] = field(default_factory=dict)
    """File of a run to the part of it that is done."""

    @property
    def part(self) -> float:
        """Of all runs to do, from 0 to 1."""
        return (self.done + sum(self.under_way.values())) / self.runs if self.runs else 1.0

    @property
    def seconds_left(self) -> float | None:
        """At the speed so far; None before there is any."""
        part = self.part
        seconds = time.monotonic() - self.began
        return seconds * (1 - part) / part if part > 0.005 else None


async def run_all(
    runs: Sequence[Run],
    folder: Folder,
    workers: int,
    progress: Progress,
    on_done: Callable[[Run, RunReply], None],
) -> None:
    """Simulate all of `runs`, so many at a time. Raises the SwarmdError of the first that fails."""
    waiting = iter(runs)
    try:
        async with asyncio.TaskGroup() as lanes:
            for number in range(min(workers, len(runs))):
                lanes.create_task(_lane(f"run {number + 1}", waiting, folder, progress, on_done))
    except ExceptionGroup as errors:
        inner: BaseException = errors
        while isinstance(inner, BaseExceptionGroup):
            inner = inner.exceptions[0]
        raise inner from errors


async def _lane(
    name: str,
    waiting: Iterator[Run],
    folder: Folder,
    progress: Progress,
    on_done: Callable[[Run, RunReply], None],
) -> None:
    current: list[str] = []

    def note(event: WorkerEvent) -> None:
        if event.kind == "progress" and current:
            progress.under_way[current[0]] = float(event.text)

    worker = Worker(
        name,
        "swarmd.simulate.runner",
        _LIMITS,
        _nothing_to_initialise,
        environment={"OMP_NUM_THREADS": "1"},
        log_path=folder.path / f"{name.replace(' ', '-')}.log",
        on_event=note,
    )
    running = asyncio.create_task(worker.run())
    try:
        for run in waiting:
            current[:] = [run.file]
            reply = await _asked(worker, running, RunRequest(run, os.fspath(folder.runs.absolute())))
            progress.under_way.pop(run.file, None)
            progress.done += 1
            on_done(run, reply)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _asked(worker: Worker, running: asyncio.Task[None], request: RunRequest) -> RunReply:
    """The reply to one request, which is asked again when the process died: it may have been of something
    else.
    """
    for attempt in (1, 2):
        try:
            return await worker.call(RUN, request, _RUN_SECONDS)
        except WorkerError as error:
            if attempt == 2 or running.done() or isinstance(error, WorkerRefusalError):
                raise SwarmdError(f"{request.run.file.removesuffix('.parquet')} failed: {error}") from error
    raise AssertionError("unreachable")


async def _nothing_to_initialise(worker: Worker) -> None:
    """The process is ready when it runs."""
