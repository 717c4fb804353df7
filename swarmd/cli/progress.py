"""Progress of long work on stderr: a bar in a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

__all__ = ["DownloadProgress", "StepProgress"]

_LINES_PER_PHASE = 10
_LINE_SECONDS = 10.0
"""Pause between two lines about a download, where there is no terminal."""


class StepProgress:
    """Shows phases of counted steps. Use as a context manager."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stderr)
        self._bars: dict[str, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=self._console,
        )

    def __enter__(self) -> StepProgress:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    def show(self, phase: str, step: int, steps: int, note: str) -> None:
        """Step `step` of `steps` of a phase is done."""
        if not self._console.is_terminal:
            if step == steps or step % max(1, steps // _LINES_PER_PHASE) == 0:
                print(f"{phase}: step {step} of {steps}, {note}", file=sys.stderr, flush=True)
            return
        if phase not in self._bars:
            self._bars[phase] = self._progress.add_task(phase, total=steps, note=note)
        self._progress.update(self._bars[phase], completed=step, note=note)


class DownloadProgress:
    """Shows how much of a download is here. Says nothing about one that is not needed. A context manager."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stderr)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._bar: TaskID | None = None
        self._said_at = 0.0

    def __enter__(self) -> DownloadProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._progress.stop()

    def show(self, name: str, done: int, total: int) -> None:
        """So many bytes of all files are here; the file `name` is on its way."""
        if not self._console.is_terminal:
            if done == total or time.monotonic() - self._said_at >= _LINE_SECONDS:
                self._said_at = time.monotonic()
                share = f"{done / max(1, total):.0%}"
                print(
                    f"{name}: {done / 1e6:,.1f} of {total / 1e6:,.1f} MB ({share})",
                    file=sys.stderr,
                    flush=True,
                )
            return
        if self._bar is None:
            self._progress.start()
            self._bar = self._progress.add_task(name, total=total)
        self._progress.update(self._bar, description=name, completed=done)
