"""Rates of the last minute, from totals that are noted at the end of each round."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

__all__ = ["RateMeter", "Rates", "Totals"]

SPAN_SECONDS = 60.0
MOST_MARKS = 200
_SHORTEST_SECONDS = 1e-3


@dataclass(frozen=True)
class Rates:
    """What was done between two moments."""

    rounds_per_minute: float
    groups_per_minute: float
    """Groups trained on."""
    tokens_per_second: float
    """Sampled."""
    idle_shares: dict[str, float]
    """By worker, the part of the time in which nothing was asked of it, 0 to 1."""


@dataclass(frozen=True)
class Totals:
    """What has been done since the start, at one moment."""

    at: float
    """Monotonic seconds."""
    rounds: int = 0
    groups: int = 0
    tokens: int = 0
    busy_seconds: dict[str, float] = field(default_factory=dict)
    """By worker, for how long something was asked of it."""

    def since(self, earlier: Totals) -> Rates:
        """Rates from `earlier` until now."""
        seconds = max(self.at - earlier.at, _SHORTEST_SECONDS)
        return Rates(
            rounds_per_minute=60 * (self.rounds - earlier.rounds) / seconds,
            groups_per_minute=60 * (self.groups - earlier.groups) / seconds,
            tokens_per_second=(self.tokens - earlier.tokens) / seconds,
            idle_shares={
                name: min(1.0, max(0.0, 1 - (busy - earlier.busy_seconds.get(name, 0.0)) / seconds))
                for name, busy in self.busy_seconds.items()
            },
        )


class RateMeter:
    """Remembers the totals of the last rounds."""

    def __init__(self, start: Totals) -> None:
        self._marks = deque([start], MOST_MARKS)

    def restart(self, start: Totals) -> None:
        """Forget what was before: starting up is not working."""
        self._marks.clear()
        self._marks.append(start)

    def note(self, totals: Totals) -> Rates:
        """Take in the totals at the end of a round; returns the rates of this round alone."""
        rates = totals.since(self._marks[-1])
        self._marks.append(totals)
        return rates

    def recent(self, now: Totals) -> Rates:
        """Rates of the last minute, or since the round that ended last where that is longer ago."""
        recent = (mark for mark in self._marks if now.at - mark.at <= SPAN_SECONDS)
        return now.since(next(recent, self._marks[-1]))
