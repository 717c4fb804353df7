"""Time that passes only when nothing is left to do. On this event loop a sleep of an hour takes none, and
what happens when follows from the program alone: the same program does the same, on a busy machine too.

Nothing on it may wait for the outside. A call to another process blocks, as a computation does.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable

__all__ = ["VirtualTimeLoop"]

EPOCH = 1_700_000_000.0
"""Wall clock at the start, seconds since the Unix epoch."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock stands still while something runs, and then jumps to the next timer."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_Selector(self._advance))

    def time(self) -> float:
        """Virtual seconds since the start."""
        return self._now

    def wall_time(self) -> float:
        """The same moment as seconds since the Unix epoch."""
        return EPOCH + self._now

    def _advance(self, seconds: float | None) -> None:
        if seconds is None:
            raise RuntimeError("everything in the simulation waits, and nothing is due")
        self._now += seconds


class _Selector(selectors.SelectSelector):
    """Lets virtual time pass instead of waiting."""

    def __init__(self, advance: Callable[[float | None], None]) -> None:
        super().__init__()
        self._advance = advance

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready; where nothing is, `timeout` passes."""
        ready = super().select(0)
        if not ready:
            self._advance(timeout)
        return ready
