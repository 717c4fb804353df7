"""Successes. How often the own policy was right lately, for each kind of task."""

from __future__ import annotations

from collections import deque

from swarmd.replay.rules import kind
from swarmd.types import RolloutGroup

RECENT_GROUPS = 16
"""Own groups of each kind that count."""
_PRIOR_COMPLETIONS = 2.0
_PRIOR_REWARD = 0.5


class Successes:
    """Rewards of the newest own groups. There are as many kinds as the manifest has tasks."""

    def __init__(self) -> None:
        self._recent: dict[tuple[str, str], deque[tuple[float, int]]] = {}
        self._mean: dict[tuple[str, str], float] = {}

    def note(self, group: RolloutGroup) -> None:
        """Take an own group in."""
        its_kind = kind(group)
        recent = self._recent.setdefault(its_kind, deque(maxlen=RECENT_GROUPS))
        recent.append((sum(group.rewards_G), len(group.rewards_G)))
        total = sum(reward for reward, _ in recent) + _PRIOR_COMPLETIONS * _PRIOR_REWARD
        self._mean[its_kind] = total / (sum(count for _, count in recent) + _PRIOR_COMPLETIONS)

    def of(self, task_kind: tuple[str, str]) -> float:
        """Mean reward of the recent completions of a kind, as if two more had had 0.5: never exactly 0 or
        1 for rewards between them.
        """
        return self._mean.get(task_kind, _PRIOR_REWARD)
