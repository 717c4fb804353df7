"""Progress of long work on stderr: a bar in a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

__all__ = ["StepProgress"]

_LINES_PER_PHASE = 10


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
