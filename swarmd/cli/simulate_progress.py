"""How far a simulation is: a bar in a terminal, now and then a line elsewhere. On stderr."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as Bars

from swarmd.simulate.lanes import Progress

__all__ = ["SimulationProgress"]

LINE_SECONDS = 30.0
"""Pause between two lines where there is no terminal."""
_SCREEN_SECONDS = 0.5


class SimulationProgress:
    """Shows `progress`. A context manager; `run` looks now and then."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._console = Console(file=sys.stderr)
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[note]}"),
            console=self._console,
            auto_refresh=False,
        )
        self._bar = self._bars.add_task("simulating", total=1.0, note="")

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._bars.stop()

    async def run(self) -> None:
        """Show for ever."""
        while True:
            if self._console.is_terminal:
                self._bars.update(self._bar, completed=self._progress.part, note=self._note(), refresh=True)
                await asyncio.sleep(_SCREEN_SECONDS)
            else:
                await asyncio.sleep(LINE_SECONDS)
                self._print(f"{self._progress.part:.1%}, {self._note()}")

    def say_done(self, name: str, seconds: float) -> None:
        """A run is done."""
        self._print(f"{name}: done in {seconds:.0f} s; {self._note()}")

    def _note(self) -> str:
        left = self._progress.seconds_left
        done = f"{self._progress.done} of {self._progress.runs} runs"
        return done if left is None else f"{done}, {timedelta(seconds=round(left))} left"

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True, markup=False)
