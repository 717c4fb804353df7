"""Sampler. Says which rollout groups the next training batch consists of: I own and J external.

The draw over peers' groups is uniform, as in the paper (arXiv 2509.08721, section 3). Where fewer
than J are at hand the batch is filled with own groups, so a node alone trains on I + J of its own.
"""

from __future__ import annotations

import random

import msgspec

from swarmd.replay.buffer import ReplayBuffer
from swarmd.types import RolloutGroup


class Batch(msgspec.Struct, frozen=True):
    """The groups of one training round."""

    groups: tuple[RolloutGroup, ...]
    external: int
    """How many of them are peers'."""
    filled: int
    """How many own groups stand in for external ones that were not there."""


class Sampler:
    """Draws batches of `local_groups` (I) own and up to `external_groups` (J) peers' groups."""

    def __init__(
        self, buffer: ReplayBuffer, *, local_groups: int, external_groups: int, generator: random.Random
    ) -> None:
        self._buffer = buffer
        self._local_groups = local_groups
        self._external_groups = external_groups
        self._generator = generator

    @property
    def batch_groups(self) -> int:
        """Groups in a full batch, I + J."""
        return self._local_groups + self._external_groups

    def missing(self, policy_version: int) -> int:
        """How many more groups are needed before `draw` can fill a batch. 0: it can now."""
        external = min(self._external_groups, len(self._buffer.drawable()))
        return max(0, self.batch_groups - external - self._buffer.local_waiting(policy_version))

    def draw(self, policy_version: int) -> Batch | None:
        """A full batch, or None where too few groups are at hand.

        Own groups come oldest first and are used once. External ones are drawn uniformly without
        replacement; each use is counted by the buffer.
        """
        if self.missing(policy_version) > 0:
            return None
        drawable = self._buffer.drawable()
        external = self._generator.sample(drawable, min(self._external_groups, len(drawable)))
        for group in external:
            self._buffer.mark_drawn(group)
        filled = self._external_groups - len(external)
        local = self._buffer.take_local(self._local_groups + filled)
        return Batch(groups=local + tuple(external), external=len(external), filled=filled)
