"""Occupancy. How long a worker had something to do: from when it is asked until it has answered, or
failed to. The rest of the time it waits for work. Requests that queue or overlap count once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

__all__ = ["Occupancy"]


class Occupancy:
    """Adds up the time in which at least one request is open."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open = 0
        self._since = 0.0
        self._closed_seconds = 0.0

    @property
    def busy_seconds(self) -> float:
        """Since the start, a request that is open now included."""
        return self._closed_seconds + (self._clock() - self._since if self._open else 0.0)

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """A request is open while this block lasts."""
        if not self._open:
            self._since = self._clock()
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            if not self._open:
                self._closed_seconds += self._clock() - self._since
