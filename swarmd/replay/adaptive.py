"""Adaptive I and J. More peers' groups while they carry more signal than own ones; fewer when own ones
do, or when the held-out reward oscillates, which too many foreign groups bring about (arXiv 2509.08721,
section 5). The size of a batch, I + J, stays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["AdaptiveMix", "MixLimits", "RoundSignal", "detrended_spread", "next_external"]

ROUNDS_BETWEEN = 10
"""Rounds that a decision looks at, and the time until the next one."""
EVALUATIONS = 6
"""Newest held-out rewards that are looked at for oscillation, where there are as many."""
MARGIN = 0.25
"""J grows only where external groups carry signal this much more often: own ones are on policy."""


@dataclass(frozen=True)
class MixLimits:
    """What J may be, and when it has to fall."""

    least: int
    """Smallest J."""
    most: int
    """Largest J."""
    most_spread: float
    """Standard deviation of the held-out reward around its trend above which it oscillates."""


@dataclass(frozen=True)
class RoundSignal:
    """How much of a batch could teach, in shares from 0 to 1."""

    own: float | None
    """Own groups whose rewards differ. None: there were no own groups."""
    external: float | None
    """External groups, of the J that were wanted, times the part of their tokens that was learned from.
    Without signal they do not enter the buffer, so only missing ones count against it. None: J was 0."""


class AdaptiveMix:
    """J over the rounds of one node."""

    def __init__(self, limits: MixLimits, external_groups: int) -> None:
        self.external_groups = min(max(external_groups, limits.least), limits.most)
        self._limits = limits
        self._rounds: list[RoundSignal] = []
        self._held_out: deque[float] = deque(maxlen=EVALUATIONS)
        self._evaluations = 0

    def note_held_out(self, evaluations: int, reward: float) -> None:
        """Take in a held-out reward, the `evaluations`-th. The same one again changes nothing."""
        if evaluations != self._evaluations:
            self._evaluations = evaluations
            self._held_out.append(reward)

    def note_round(self, signal: RoundSignal) -> None:
        """Take in a round. Every so many, J is decided anew."""
        self._rounds.append(signal)
        if len(self._rounds) < ROUNDS_BETWEEN:
            return
        own = [r.own for r in self._rounds if r.own is not None]
        external = [r.external for r in self._rounds if r.external is not None]
        self._rounds.clear()
        spread = detrended_spread(range(len(self._held_out)), self._held_out)
        oscillates = len(self._held_out) == EVALUATIONS and spread > self._limits.most_spread
        self.external_groups = next_external(
            self.external_groups,
            self._limits,
            # Where there is none to look at, one more or one fewer is the way to see some.
            own_signal=float(np.mean(own)) if own else 1.0,
            external_signal=float(np.mean(external)) if external else 1.0,
            oscillates=oscillates,
        )
        if oscillates:
            # The next decision is about what comes now.
            self._held_out.clear()


def next_external(
    external_groups: int,
    limits: MixLimits,
    *,
    own_signal: float,
    external_signal: float,
    oscillates: bool,
) -> int:
    """J after a decision: at most one more or one fewer than `external_groups`, within the limits."""
    step = 0
    if oscillates or external_signal < own_signal:
        step = -1
    elif external_signal > own_signal + MARGIN:
        step = 1
    return min(max(external_groups + step, limits.least), limits.most)


def detrended_spread(x: Sequence[float] | range, values: Sequence[float]) -> float:
    """Standard deviation of `values` around the straight line that fits them best over `x`.

    Divided by n - 2, the degrees of freedom that the line leaves; 0 for fewer than three values.
    """
    if len(values) < 3:
        return 0.0
    points = np.asarray(x, dtype=float)
    residuals = np.asarray(values) - np.polyval(np.polyfit(points, np.asarray(values), 1), points)
    return float(np.sqrt(np.sum(residuals**2) / (len(values) - 2)))
