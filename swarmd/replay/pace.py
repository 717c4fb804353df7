"""Pace. Says how far sampling may run before training, so that no own group ever gets too old for it.

Own groups are never thrown away for being late. Long answers are late more often than short ones, and
a node that dropped late groups would learn from its short answers. Sampling pauses in time instead.

The rule: every step takes at most I + J own groups, and a group that version v sampled has to be taken
by a step that begins with version v + max_policy_lag or before. A group may be begun while all groups
before it and itself fit into the steps left until then, and no step takes so few that they do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Pace"]


@dataclass(frozen=True)
class Pace:
    """The sizes of a batch, and how far sampling may run before training."""

    local_groups: int
    """Own groups in a batch (I). 0: own groups only stand in for missing external ones."""
    external_groups: int
    """External groups in a batch (J)."""
    max_ahead: int
    """Own groups that wait for the trainer or are being sampled, at most; not below I + J."""
    max_policy_lag: int
    """Versions between the policy that sampled a group and the one that a step begins with, at most."""

    @classmethod
    def synchronous(cls, local_groups: int, external_groups: int) -> Pace:
        """One batch is sampled, then trained on, in turn: nothing ahead, no lag."""
        return cls(local_groups, external_groups, local_groups + external_groups, 0)

    @property
    def batch_groups(self) -> int:
        """Groups in a full batch, I + J."""
        return self.local_groups + self.external_groups

    def room(self, ahead: int, served_version: int, next_version: int) -> int:
        """How many own groups may be begun now with `served_version`.

        `ahead` are sampled or being sampled, and no step has taken them; `next_version` is the one
        that the next step will begin with. Where a full batch is not yet ahead and the generator has
        the newest policy, the result is never 0.
        """
        steps = self.max_policy_lag + 1 - (next_version - served_version)
        return max(0, min(self.max_ahead, steps * self.batch_groups) - ahead)

    def due(self, versions: Sequence[int], policy_version: int) -> int:
        """How many own groups the step that begins with `policy_version` has to take, the first of the
        queue, so that those behind them can all be taken in time. At most I + J while `room` was heeded.

        `versions` are those of the groups that wait and then of those being sampled, in their order.
        """
        return max(
            (
                place + 1 - self.batch_groups * max(0, version + self.max_policy_lag - policy_version)
                for place, version in enumerate(versions)
            ),
            default=0,
        )
