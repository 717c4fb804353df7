"""Measures how long the event loop was blocked. Sleeps for a moment again and again: what a sleep
takes too long is how long nothing else could run either.

On a busy machine a late wake-up may be the scheduler's doing. So the processor time that the loop's
thread used meanwhile is kept with the longest block: when it is near, our own code held the loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

TICK_SECONDS = 0.02


class LoopLag:
    """The longest block of this event loop, since the (re)start and since it was last asked."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.max_ms = 0.0
        """Since the start or `restart`."""
        self.max_busy_ms = 0.0
        """Processor time of the loop's thread in that longest block."""
        self._recent_ms = 0.0
        self._clock = clock

    async def run(self) -> None:
        """Measure for ever."""
        while True:
            began, busy = self._clock(), time.thread_time()
            await asyncio.sleep(TICK_SECONDS)
            lag_ms = (self._clock() - began - TICK_SECONDS) * 1000
            self._recent_ms = max(self._recent_ms, lag_ms)
            if lag_ms > self.max_ms:
                self.max_ms = lag_ms
                self.max_busy_ms = (time.thread_time() - busy) * 1000

    def restart(self) -> None:
        """Forget what was measured: starting up may block for a moment, training may not."""
        self.max_ms = self.max_busy_ms = self._recent_ms = 0.0

    def take_recent_ms(self) -> float:
        """The longest block since this was last called, in milliseconds. Starts the next span."""
        recent, self._recent_ms = self._recent_ms, 0.0
        return recent
