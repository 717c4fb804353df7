"""Sampler. Says which rollout groups the next training batch consists of: I own and J external.

The draw over peers' groups is uniform, as in the paper (arXiv 2509.08721, section 3). Where fewer
than J are at hand the batch is filled with own groups, so a node alone trains on I + J of its own.
Own groups that could not be used in time otherwise go before external ones, and no peer has more of
them than `share` allows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from swarmd.replay.buffer import ReplayBuffer
from swarmd.replay.pace import Pace
from swarmd.replay.screens import NO_SHARE, BatchShare
from swarmd.types import RolloutGroup


class Batch(msgspec.Struct, frozen=True):
    """The groups of one training round."""

    groups: tuple[RolloutGroup, ...]
    external: int
    """How many of them are peers'."""
    filled: int
    """How many own groups stand in for external ones that were not there or had to stand back."""
    above_share: tuple[RolloutGroup, ...] = ()
    """Groups of peers that had their share of the batch already; with `drop` they are not in it."""


class Sampler:
    """Draws batches of own and peers' groups, in the sizes that `pace` names."""

    def __init__(
        self, buffer: ReplayBuffer, pace: Pace, generator: random.Random, share: BatchShare = NO_SHARE
    ) -> None:
        self.pace = pace
        self._share = share
        self._buffer = buffer
        self._generator = generator

    def missing(self, policy_version: int, in_flight: Sequence[int] = ()) -> int:
        """How many more groups are needed before `draw` can fill a batch. 0: it can now.

        `in_flight` are the versions that sample own groups now, oldest first.
        """
        own = self.pace.batch_groups - self._external(policy_version, in_flight)
        return max(0, own - len(self._buffer.local_versions()))

    def draw(self, policy_version: int, in_flight: Sequence[int] = ()) -> Batch | None:
        """A full batch, or None where too few groups are at hand.

        Own groups come oldest first and are used once. External ones are drawn uniformly without
        replacement; each use is counted by the buffer.
        """
        if self.missing(policy_version, in_flight) > 0:
            return None
        drawable = self._buffer.drawable()
        shuffled = self._generator.sample(drawable, len(drawable))
        most = self._most_external(policy_version, in_flight)
        external, above = self._share.sort(shuffled, most, self.pace.external_groups)
        count = len(external)
        for group in external:
            self._buffer.mark_drawn(group)
        filled = max(0, self.pace.external_groups - count)
        local = self._buffer.take_local(self.pace.batch_groups - count)
        return Batch(groups=local + tuple(external), external=count, filled=filled, above_share=tuple(above))

    def _external(self, policy_version: int, in_flight: Sequence[int]) -> int:
        """How many external groups the next batch has, of those that are at hand and within a share."""
        most = self._most_external(policy_version, in_flight)
        return len(self._share.sort(self._buffer.drawable(), most, self.pace.external_groups)[0])

    def _most_external(self, policy_version: int, in_flight: Sequence[int]) -> int:
        """How many external groups are wanted in the next batch: J, less where own ones are due."""
        pace = self.pace
        due = 0
        if pace.local_groups:
            due = pace.due((*self._buffer.local_versions(), *in_flight), policy_version)
        else:
            self._buffer.forget_local(policy_version - pace.max_policy_lag)
        return max(0, min(pace.external_groups, pace.batch_groups - due))
