"""Sampler. Says which rollout groups the next training batch consists of: I own and J external.

Which external ones, a rule says (`rules`, `samplers`). Where fewer than J are at hand the batch is filled
with own groups, so a node alone trains on I + J of its own. Own groups that could not be used in time
otherwise go before external ones, and no peer has more of them than `share` allows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from swarmd.replay.adaptive import AdaptiveMix, RoundSignal
from swarmd.replay.buffer import ReplayBuffer
from swarmd.replay.pace import Pace
from swarmd.replay.rules import Candidate, Draw, Rule, answer
from swarmd.replay.samplers import uniform
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
    """Draws batches of own and peers' groups.

    Args:
        buffer: holds them.
        pace: I and J, and when own groups are due.
        generator: the source of chance of the rule.
        share: how much of a batch may be one peer's.
        rule: which external groups to take.
        usefulness: what is known of an author, for the rule.
        mix: changes I and J over the rounds. None: they stay.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        pace: Pace,
        generator: random.Random,
        share: BatchShare = NO_SHARE,
        *,
        rule: Rule = uniform,
        usefulness: Callable[[str], float | None] = lambda author: None,
        mix: AdaptiveMix | None = None,
    ) -> None:
        self.pace = pace
        self.share = share
        """In force; may be replaced at any time."""
        self._buffer = buffer
        self._generator = generator
        self._rule = rule
        self._usefulness = usefulness
        self._mix = mix
        self._take_mix()

    def missing(self, policy_version: int, in_flight: Sequence[int] = ()) -> int:
        """How many more groups are needed before `draw` can fill a batch. 0: it can now.

        `in_flight` are the versions that sample own groups now, oldest first.
        """
        before = self._generator.getstate()
        taken, _ = self._choose(policy_version, in_flight)
        # Looking is no draw.
        self._generator.setstate(before)
        return self._missing_beside(taken)

    def draw(self, policy_version: int, in_flight: Sequence[int] = ()) -> Batch | None:
        """A full batch, or None where too few groups are at hand.

        Own groups come oldest first and are used once. External ones are drawn by the rule, without
        replacement; each use is counted by the buffer.
        """
        before = self._generator.getstate()
        taken, above = self._choose(policy_version, in_flight)
        if self._missing_beside(taken) > 0:
            self._generator.setstate(before)
            return None
        for candidate in taken:
            self._buffer.mark_drawn(candidate.group)
        count = len(taken)
        local = self._buffer.take_local(self.pace.batch_groups - count)
        return Batch(
            groups=_merge(local, taken),
            external=count,
            filled=max(0, self.pace.external_groups - count),
            above_share=tuple(candidate.group for candidate in above),
        )

    def note_round(
        self, batch: Batch, dropped_share: float | None, evaluations: int, held_out: float | None
    ) -> None:
        """Let I and J follow what a round showed, where they are adaptive.

        `dropped_share`: part of the peers' tokens that was not learned from. `held_out`: the newest
        held-out reward, the `evaluations`-th.
        """
        if self._mix is None:
            return
        if held_out is not None:
            self._mix.note_held_out(evaluations, held_out)
        own = [group.has_signal for group in batch.groups if group.is_local]
        wanted = self.pace.external_groups
        external = min(1.0, batch.external / wanted) * (1.0 - (dropped_share or 0.0)) if wanted else None
        self._mix.note_round(RoundSignal(sum(own) / len(own) if own else None, external))
        self._take_mix()

    def _take_mix(self) -> None:
        if self._mix is not None:
            external = self._mix.external_groups
            local = self.pace.batch_groups - external
            self.pace = replace(self.pace, local_groups=local, external_groups=external)

    def _missing_beside(self, external: Sequence[Candidate]) -> int:
        own = self.pace.batch_groups - len(external)
        return max(0, own - len(self._buffer.local_versions()))

    def _choose(
        self, policy_version: int, in_flight: Sequence[int]
    ) -> tuple[list[Candidate], list[Candidate]]:
        """External groups of the next batch, of those at hand, and those that are above a share."""
        most = self._most_external(policy_version, in_flight)
        draw = Draw(
            candidates=self._buffer.candidates(self._usefulness),
            count=most,
            own=self._buffer.waiting(self.pace.local_groups),
            generator=self._generator,
        )
        # With nothing to draw there is nothing to ask, and no rule need think of it.
        chosen = answer(self._rule, draw) if draw.candidates else []
        return self.share.sort(chosen, most, self.pace.external_groups)

    def _most_external(self, policy_version: int, in_flight: Sequence[int]) -> int:
        """How many external groups are wanted in the next batch: J, less where own ones are due."""
        pace = self.pace
        due = 0
        if pace.local_groups:
            due = pace.due((*self._buffer.local_versions(), *in_flight), policy_version)
        else:
            self._buffer.forget_local(policy_version - pace.max_policy_lag)
        return max(0, min(pace.external_groups, pace.batch_groups - due))


def _merge(local: Sequence[RolloutGroup], external: Sequence[Candidate]) -> tuple[RolloutGroup, ...]:
    """The batch, own groups first. All that are merged with one own group know each other's rewards."""
    batch = [*local, *(candidate.group for candidate in external)]
    circles: dict[int, list[int]] = {}
    place_of = {id(group): place for place, group in enumerate(local)}
    for place, candidate in enumerate(external, start=len(local)):
        if candidate.merged_with is not None:
            own_place = place_of[id(candidate.merged_with)]
            circles.setdefault(own_place, [own_place]).append(place)
    for circle in circles.values():
        for place in circle:
            others = [batch[other] for other in circle if other != place]
            rewards = tuple(reward for group in others for reward in group.rewards_G)
            batch[place] = msgspec.structs.replace(batch[place], merged_rewards=rewards)
    return tuple(batch)
