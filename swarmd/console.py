"""What a node shows to the person who started it: a live screen on a terminal, a line a round
elsewhere, and at the end a summary and a plot.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from pathlib import Path

from rich.console import Console

from swarmd.errors import SwarmdError
from swarmd.monitor.history import RoundRecord, read_rounds
from swarmd.monitor.plot import plot_in_subprocess
from swarmd.monitor.screen import Screen, View, round_line
from swarmd.monitor.summary import summary
from swarmd.observe import Observer
from swarmd.paths import Home

log = logging.getLogger("swarmd.node")

PLOT_SECONDS = 10.0
_NO_TERMINAL_WIDTH = 2000


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Who reads a pipe may have seen enough. Rich would end the whole program here."""
        self.quiet = True


class NodeConsole:
    """The node's face. With `attended` off (a node in the background) it only logs and plots."""

    def __init__(self, observer: Observer, home: Home, *, attended: bool) -> None:
        self._observer = observer
        self._home = home
        self._attended = attended
        self._console = _Console()

    async def run(self) -> None:
        """Draw the live screen until cancelled, where there is a terminal to draw it on."""
        if has_screen(self._attended):
            screen = Screen(self._console, lambda: View(self._observer.status(), self._observer.peers()))
            try:
                await screen.run()
            except OSError as error:  # The terminal is gone; the node need not be.
                log.warning("the screen cannot be drawn any more: %s", error.strerror or error)

    def note_round(self, record: RoundRecord) -> None:
        """Say a round in one line, in the log."""
        log.info("%s", round_line(record, self._observer.status()))

    async def draw_plot(self, seconds: float | None = None) -> Path | None:
        """Draw the reward plot into the home. A plot that fails or takes longer costs the plot: None."""
        try:
            await plot_in_subprocess(
                {self._observer.name: self._home.history},
                self._home.reward_plot,
                min(seconds or PLOT_SECONDS, PLOT_SECONDS),
            )
        except SwarmdError as error:
            log.warning("%s", error)
            return None
        return self._home.reward_plot

    async def say_end(self, plot: Path | None) -> None:
        """Print the summary of the run, once nothing else is on the terminal any more."""
        if not self._attended:
            return
        try:
            records = await asyncio.to_thread(read_rounds, self._home.history)
        except sqlite3.Error as error:
            log.warning("the history cannot be read: %s", error)
            records = ()
        # A file has no width: the path of the plot stays on one line.
        console = self._console if self._console.is_terminal else _Console(width=_NO_TERMINAL_WIDTH)
        try:
            console.print(summary(records, self._observer.status(), self._observer.peers(), plot))
        except OSError as error:  # A full disk behind it, or a reader that is gone.
            log.warning("the summary cannot be printed: %s", error.strerror or error)


def has_screen(attended: bool) -> bool:
    """Whether a live screen is drawn; log lines then go to the file only."""
    return attended and Console().is_terminal
