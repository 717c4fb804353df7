"""Screens against taught behaviour: right answers that carry something else along (arXiv 2511.09780).

A verifier rewards the answer and learns from the whole completion, so a peer can teach whatever stands
around a right answer. These screens look at what peers' rewarded completions have beside it: length,
repetition, and how much of a batch is one peer's; the trainer adds how likely they are under the own
policy. Each can be off, warn (count it) or drop (count it, and do not learn from it). A payload that
looks like an honest answer passes all of them: docs/security.md has what they find, and what they cost.
"""

from __future__ import annotations

import zlib
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from swarmd.replay.rules import Candidate
from swarmd.types import RolloutGroup

Mode = Literal["off", "warn", "drop"]

REFERENCE_COMPLETIONS = 256
"""Own completions of each dataset whose lengths are remembered."""
_FEWEST_COMPLETIONS = 32
_SHORTEST_BYTES = 200
"""Shorter texts are not judged by compression: an answer in a few symbols repeats itself."""


class Screen(StrEnum):
    """What a group was held up by. Closed: peers are counted by it."""

    LONG = "long"
    """A rewarded completion much longer than any own one of the same dataset."""
    REPETITIVE = "repetitive"
    """A rewarded completion that says the same over and over."""
    UNLIKELY = "unlikely"
    """A rewarded completion that the own policy would hardly say."""
    BATCH_SHARE = "batch_share"
    """One peer has more than its share of a batch."""


@dataclass(frozen=True)
class TextLimits:
    """When the screens on text hold a group up, and whether it is then dropped."""

    length: Mode
    length_factor: float
    """A completion is long when it has more than so many times the characters of the longest own one."""
    repetition: Mode
    least_compressed_share: float
    """A completion is repetitive when it can be compressed to less than this part of its bytes."""


class TextScreens:
    """Judges peers' groups by their text, against the node's own completions."""

    def __init__(self, limits: TextLimits) -> None:
        self.limits = limits
        """In force; may be replaced at any time."""
        self._own: dict[str, deque[int]] = {}

    def note_own(self, group: RolloutGroup) -> None:
        """Remember how long the own completions of a dataset are."""
        lengths = self._own.setdefault(group.task.dataset, deque(maxlen=REFERENCE_COMPLETIONS))
        lengths.extend(len(completion.text) for completion in group.completions_G)

    def judge(self, group: RolloutGroup) -> tuple[tuple[Screen, ...], bool]:
        """What holds a peer's group up, and whether it is to be dropped for that."""
        limits = self.limits
        rewarded = list(rewarded_texts(group))
        found: list[Screen] = []
        is_dropped = False
        if limits.length != "off" and any(self._is_long(text, group.task.dataset) for text in rewarded):
            found.append(Screen.LONG)
            is_dropped |= limits.length == "drop"
        if limits.repetition != "off" and any(
            compressed_share(text) < limits.least_compressed_share for text in rewarded
        ):
            found.append(Screen.REPETITIVE)
            is_dropped |= limits.repetition == "drop"
        return tuple(found), is_dropped

    def _is_long(self, text: str, dataset: str) -> bool:
        """Whether a text is too long; never before enough own completions of the dataset are known."""
        own = self._own.get(dataset, ())
        return len(own) >= _FEWEST_COMPLETIONS and len(text) > self.limits.length_factor * max(own)


def rewarded_texts(group: RolloutGroup) -> Iterator[str]:
    """The completions with positive advantage: what learning from the group makes more likely."""
    mean = group.mean_reward
    for completion, reward in zip(group.completions_G, group.rewards_G, strict=True):
        if reward > mean:
            yield completion.text


def compressed_share(text: str) -> float:
    """Compressed bytes over bytes: near 0 for a text that repeats itself; 1 for one too short to judge."""
    data = text.encode("utf-8", "surrogatepass")
    if len(data) < _SHORTEST_BYTES:
        return 1.0
    return len(zlib.compress(data, level=1)) / len(data)


@dataclass(frozen=True)
class BatchShare:
    """How much of a batch's external groups may be one peer's."""

    mode: Mode
    most: float
    """Part of the external groups, in (0, 1]. One group is always allowed."""

    def sort(
        self, candidates: Sequence[Candidate], count: int, external_groups: int
    ) -> tuple[list[Candidate], list[Candidate]]:
        """Go through `candidates` in order until `count` are taken; returns those, and those above a share.

        With `warn` those above a share are taken all the same.
        """
        limit = max(1, int(external_groups * self.most))
        taken: list[Candidate] = []
        above: list[Candidate] = []
        of_peer: Counter[str] = Counter()
        for candidate in candidates:
            if len(taken) == count:
                break
            author = candidate.group.author
            is_above = self.mode != "off" and of_peer[author] >= limit
            if is_above:
                above.append(candidate)
            if not is_above or self.mode == "warn":
                taken.append(candidate)
                of_peer[author] += 1
        return taken, above


NO_SHARE = BatchShare("off", 1.0)
