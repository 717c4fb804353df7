"""What was seen before, by author. A flood of one author makes this node forget nothing of another's."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

MOST_GROUPS = 65_536
_TRIM_TO = 0.9
_MOST_AUTHORS = 4096
VERSIONS_PER_SECOND = 100.0
"""No trainer updates its policy more often."""
VERSIONS_AT_ONCE = 1000
"""Allowed on top, for clocks and for groups that overtake each other."""


class SeenGroups:
    """Ids of groups that were taken, each for `keep_seconds`.

    Bounded in all by `most_groups`; when full, the authors with the most give up their oldest.
    """

    def __init__(
        self,
        keep_seconds: float,
        most_groups: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keep_seconds = keep_seconds
        self._most_groups = most_groups or MOST_GROUPS
        self._clock = clock
        # Of each author the ids and when they came, oldest first; authors by their last group.
        self._of: OrderedDict[bytes, dict[bytes, float]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, author: bytes, group_id: bytes) -> bool:
        """Remember a group. False: it was seen before."""
        now = self._clock()
        seen = self._of.setdefault(author, {})
        if now - seen.get(group_id, float("-inf")) <= self._keep_seconds:
            return False
        self._count -= seen.pop(group_id, None) is not None
        seen[group_id] = now
        self._count += 1
        self._of.move_to_end(author)
        self._expire(author, now)
        self._expire(next(iter(self._of)), now)
        if self._count > self._most_groups:
            self._trim(int(self._most_groups * _TRIM_TO))
        return True

    def _expire(self, author: bytes, now: float) -> None:
        seen = self._of[author]
        while seen and now - seen[oldest := next(iter(seen))] > self._keep_seconds:
            del seen[oldest]
            self._count -= 1
        if not seen:
            del self._of[author]

    def _trim(self, most_groups: int) -> None:
        """Level the largest authors down until that many groups are left."""
        sizes = sorted((len(seen) for seen in self._of.values()), reverse=True)
        surplus = self._count - most_groups
        level, taken = sizes[0], 0
        for rank, size in enumerate(sizes):
            smaller = sizes[rank + 1] if rank + 1 < len(sizes) else 0
            room = (rank + 1) * (size - smaller)
            if taken + room >= surplus:
                level = size - -(-(surplus - taken) // (rank + 1))
                break
            taken += room
        for author, seen in list(self._of.items()):
            for group_id in list(seen)[: max(0, len(seen) - level)]:
                del seen[group_id]
                self._count -= 1
            if not seen:
                del self._of[author]


class PolicyVersions:
    """The newest policy version that each author claimed, and when."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._newest: OrderedDict[bytes, tuple[int, float]] = OrderedDict()

    def follows(self, author: bytes, version: int) -> bool:
        """Whether an author can have come to this version since its last group.

        It may start over from any lower one. A version that does not follow is remembered all the
        same, so that an author which resumed from far ahead loses one group and no more.
        """
        now = self._clock()
        newest, since = self._newest.get(author, (version, now))
        self._newest[author] = (version, now)
        self._newest.move_to_end(author)
        while len(self._newest) > _MOST_AUTHORS:
            self._newest.popitem(last=False)
        return version <= newest + VERSIONS_AT_ONCE + VERSIONS_PER_SECOND * (now - since)


class ReplayWindow:
    """Tells messages that a publisher sent from copies that others send again in its name.

    Each publisher numbers its messages, rising over its restarts, under its signature. A number that
    was seen, or lies far below the highest, is a copy: whoever sent it is not known, and the publisher
    must not pay for it. As in RFC 4303, section 3.4.3, the last numbers are kept as bits.

    Args:
        forget_seconds: a publisher that was silent for so long begins anew.
        clock: monotonic seconds.
    """

    WIDTH = 1024

    def __init__(self, forget_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._forget_seconds = forget_seconds
        self._clock = clock
        self._of: OrderedDict[str, tuple[int, int, float]] = OrderedDict()

    def is_copy(self, source: str, number: int) -> bool:
        """Whether a message with this number cannot be its publisher's own."""
        found = self._of.get(source)
        if found is None:
            return False
        highest, bits, at = found
        if number > highest or self._clock() - at > self._forget_seconds:
            return False
        below = highest - number
        return below >= self.WIDTH or bool(bits >> below & 1)

    def note(self, source: str, number: int) -> None:
        """A message that `is_copy` found to be none was taken."""
        now = self._clock()
        highest, bits, at = self._of.get(source, (number, 0, now))
        if now - at > self._forget_seconds:
            highest, bits = number, 0
        if number > highest:
            ahead = number - highest
            bits = bits << ahead & (1 << self.WIDTH) - 1 if ahead < self.WIDTH else 0
            highest = number
        self._of[source] = (highest, bits | 1 << highest - number, now)
        self._of.move_to_end(source)
        while len(self._of) > _MOST_AUTHORS:
            self._of.popitem(last=False)
