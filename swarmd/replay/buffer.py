"""Replay buffer. Holds recent rollout groups, bounded in groups and in bytes.

Own groups wait in order for the trainer and are used once; the rollout loop paces itself by them
(`pace`), so they are never dropped for being late or for room. Peers' groups are kept until they are
drawn often enough, grow too old, or must make room. No peer may own more than its share, and where
room is needed the peer that holds most gives up its oldest group: a flood displaces itself.

Whatever does not enter or leaves undrawn is counted by reason.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import islice

import msgspec

from swarmd.replay.rules import Candidate, kind
from swarmd.replay.successes import Successes
from swarmd.types import RolloutGroup

SEEN_PER_CAPACITY = 8
"""Digests remembered for each group of capacity, to tell duplicates."""


class Drop(StrEnum):
    """Why a group did not enter the buffer, or left it undrawn."""

    DUPLICATE = "duplicate"
    NO_SIGNAL = "no_signal"
    """All rewards are equal: zero advantage teaches nothing and would only take room."""
    STALE = "stale"
    """Too old, or too many policy versions behind."""
    TOO_LARGE = "too_large"
    """One group larger than a peer's whole share."""
    QUOTA = "quota"
    """Made room for a newer group of the same peer."""
    CAPACITY = "capacity"
    """Made room in a full buffer."""
    LOCAL_STALE = "local_stale"
    """An own group that no peer's group was missing for, on a node that learns from peers only."""


class BufferStats(msgspec.Struct, frozen=True):
    """What the buffer holds, and what it refused or let go since the start."""

    local: int
    external: int
    drawable: int
    """External groups that the sampler could draw now."""
    bytes: int
    by_author: dict[str, int]
    """External groups held, by peer id."""
    dropped: dict[str, int]
    """Groups that were refused or left undrawn, by reason."""


class SavedGroup(msgspec.Struct, frozen=True):
    """One group of a saved buffer."""

    group: RolloutGroup
    age_seconds: float
    """Since it was received, when the buffer was saved."""
    uses: int
    """How often it had been drawn."""


class ReplayBuffer:
    """Own groups in a queue, peers' groups in a bounded store.

    Args:
        capacity_groups: most external groups held.
        capacity_bytes: most bytes held. Own groups take what they need, external ones the rest.
        peer_share: largest part of either capacity that one peer may occupy, in (0, 1].
        max_age_seconds: older external groups are not drawn.
        max_policy_lag: external groups more versions than this behind their author's newest are not drawn.
        max_uses: how often an external group may be drawn.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        *,
        capacity_groups: int,
        capacity_bytes: int,
        peer_share: float,
        max_age_seconds: float,
        max_policy_lag: int,
        max_uses: int,
        clock: Callable[[], float],
    ) -> None:
        self._capacity_groups = capacity_groups
        self._capacity_bytes = capacity_bytes
        self._peer_share = peer_share
        self._max_age_seconds = max_age_seconds
        self._max_policy_lag = max_policy_lag
        self._max_uses = max_uses
        self._clock = clock
        self._local: deque[RolloutGroup] = deque()
        self._local_bytes = 0
        self._peers: dict[str, _Peer] = {}
        self._external_groups = 0
        self._external_bytes = 0
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._dropped: Counter[str] = Counter()
        self._successes = Successes()

    def add_local(self, group: RolloutGroup) -> None:
        """Queue an own group for the trainer. Where bytes are short, external groups make room."""
        self._local.append(group)
        self._local_bytes += group.size_bytes
        self._successes.note(group)
        self._make_room()

    def add_external(
        self, group: RolloutGroup, payers: Mapping[str, float] | None = None, *, uses: int = 0
    ) -> Drop | None:
        """Keep a peer's group.

        Returns None when the group is kept, else the reason why not. A group that is kept may
        displace others, by the rules of this module.

        payers: whose room it takes, each with the shares it has: the author, with a part of one while
        it is new, and a neighbourhood in which several peers live. None: the author has one share.
        uses: how often it was drawn in an earlier run.
        """
        payers = payers or {group.author: 1.0}
        reason = self._refusal(group, min(payers.values()))
        if reason is not None:
            self._dropped[reason] += 1
            return reason
        peer = self._peers.setdefault(group.author, _Peer())
        peer.payers = payers
        peer.add(group, uses)
        self._external_groups += 1
        self._external_bytes += group.size_bytes
        for payer, shares in payers.items():
            self._keep_within(payer, min(1.0, shares * self._peer_share))
        self._make_room()
        return None

    def local_versions(self) -> tuple[int, ...]:
        """Policy versions of the own groups that wait, oldest group first."""
        return tuple(group.policy_version for group in self._local)

    def waiting(self, count: int) -> tuple[RolloutGroup, ...]:
        """The first `count` own groups that wait, oldest first, or as many as there are."""
        return tuple(islice(self._local, count))

    def forget_local(self, before_version: int) -> None:
        """Drop own groups from the front of the queue that older versions sampled. For a node that
        learns from peers only: its own groups are published, and kept as a reserve.
        """
        while self._local and self._local[0].policy_version < before_version:
            self._dropped[Drop.LOCAL_STALE] += 1
            self.take_local(1)

    def take_local(self, count: int) -> tuple[RolloutGroup, ...]:
        """Remove and return up to `count` own groups, oldest first: no late answer is passed over."""
        taken = tuple(self._local.popleft() for _ in range(min(count, len(self._local))))
        self._local_bytes -= sum(group.size_bytes for group in taken)
        return taken

    def drawable(self) -> list[RolloutGroup]:
        """External groups that may be drawn now: fresh, not far behind, with signal, not used up."""
        self._expire()
        return [entry.group for peer in self._peers.values() for entry in peer.drawable(self._max_policy_lag)]

    def candidates(self, usefulness: Callable[[str], float | None]) -> tuple[Candidate, ...]:
        """The drawable groups as a sampling rule sees them. `usefulness` says what is known of an author."""
        self._expire()
        now = self._clock()
        found = []
        for author, peer in self._peers.items():
            useful, newest = usefulness(author), peer.newest_version
            found += [
                Candidate(
                    group=entry.group,
                    age_seconds=now - entry.group.received_at,
                    uses=entry.uses,
                    versions_behind=newest - entry.group.policy_version,
                    own_success=self._successes.of(kind(entry.group)),
                    author_usefulness=useful,
                )
                for entry in peer.drawable(self._max_policy_lag)
            ]
        return tuple(found)

    def mark_drawn(self, group: RolloutGroup) -> None:
        """Count one use of an external group and forget it when its uses are spent."""
        peer = self._peers[group.author]
        entry = peer.groups[group.group_id]
        entry.uses += 1
        if entry.uses >= self._max_uses:
            self._remove(group.author, group.group_id)

    def saved(self, max_bytes: int) -> tuple[SavedGroup, ...]:
        """What to keep over a restart: own groups first, then the newest of the external ones, of at
        most `max_bytes` together. In the order of arrival, as `restore` takes them.
        """
        entries = [entry for peer in self._peers.values() for entry in peer.groups.values()]
        entries.sort(key=lambda entry: entry.group.received_at, reverse=True)
        kept, size = [], 0
        for entry in [*map(_Entry, self._local), *entries]:
            size += entry.group.size_bytes
            if size > max_bytes:
                break
            kept.append(entry)
        kept.sort(key=lambda entry: entry.group.received_at)
        now = self._clock()
        return tuple(SavedGroup(entry.group, now - entry.group.received_at, entry.uses) for entry in kept)

    def restore(self, groups: Iterable[SavedGroup], seconds_since: float) -> None:
        """Take in what `saved` returned `seconds_since` ago, in an earlier run. The rules are those of
        new groups: what has grown too old meanwhile does not enter.
        """
        now = self._clock()
        for saved in groups:
            group = msgspec.structs.replace(saved.group, received_at=now - saved.age_seconds - seconds_since)
            if group.is_local:
                self.add_local(group)
            else:
                self.add_external(group, uses=saved.uses)

    def stats(self) -> BufferStats:
        """A snapshot for status and metrics."""
        return BufferStats(
            local=len(self._local),
            external=self._external_groups,
            drawable=len(self.drawable()),
            bytes=self._bytes,
            by_author={author: len(peer.groups) for author, peer in self._peers.items()},
            dropped=dict(self._dropped),
        )

    @property
    def _bytes(self) -> int:
        return self._local_bytes + self._external_bytes

    def _make_room(self) -> None:
        while self._peers and (
            self._external_groups > self._capacity_groups or self._bytes > self._capacity_bytes
        ):
            largest = max(self._peers, key=lambda author: (self._peers[author].bytes, author))
            self._drop_oldest_of(largest, Drop.CAPACITY)

    def _keep_within(self, payer: str, part: float) -> None:
        """While a payer takes more than a part of the capacity, who has most of it loses its oldest."""
        most_groups = max(1, int(self._capacity_groups * part))
        most_bytes = int(self._capacity_bytes * part)
        while True:
            booked = {author: peer for author, peer in self._peers.items() if payer in peer.payers}
            groups = sum(len(peer.groups) for peer in booked.values())
            size_bytes = sum(peer.bytes for peer in booked.values())
            if groups <= most_groups and size_bytes <= most_bytes:
                return
            by_bytes = size_bytes > most_bytes
            largest = max(booked, key=lambda author: booked[author].size(by_bytes=by_bytes))
            self._drop_oldest_of(largest, Drop.QUOTA)

    def _refusal(self, group: RolloutGroup, shares: float) -> Drop | None:
        if group.size_bytes > int(self._capacity_bytes * min(1.0, shares * self._peer_share)):
            return Drop.TOO_LARGE
        if self._clock() - group.received_at > self._max_age_seconds:
            return Drop.STALE
        # The digest is over the content, so a group copied under another name is a duplicate too.
        digest = _content_digest(group)
        peer = self._peers.get(group.author)
        if digest in self._seen or (peer is not None and group.group_id in peer.groups):
            return Drop.DUPLICATE
        self._seen[digest] = None
        while len(self._seen) > SEEN_PER_CAPACITY * self._capacity_groups:
            self._seen.popitem(last=False)
        # SAPO drops groups of zero advantage before the draw; here they do not even enter.
        return None if group.has_signal else Drop.NO_SIGNAL

    def _expire(self) -> None:
        oldest = self._clock() - self._max_age_seconds
        for author, peer in list(self._peers.items()):
            for group_id in [i for i, entry in peer.groups.items() if entry.group.received_at < oldest]:
                self._dropped[Drop.STALE] += 1
                self._remove(author, group_id)

    def _drop_oldest_of(self, author: str, reason: Drop) -> None:
        self._dropped[reason] += 1
        self._remove(author, next(iter(self._peers[author].groups)))

    def _remove(self, author: str, group_id: str) -> None:
        peer = self._peers[author]
        size_bytes = peer.remove(group_id)
        self._external_groups -= 1
        self._external_bytes -= size_bytes
        if not peer.groups:
            del self._peers[author]


class _Entry:
    """An external group and how often it was drawn."""

    def __init__(self, group: RolloutGroup, uses: int = 0) -> None:
        self.group = group
        self.uses = uses


class _Peer:
    """The groups of one author, in order of arrival."""

    def __init__(self) -> None:
        self.groups: dict[str, _Entry] = {}
        self.bytes = 0
        self.payers: Mapping[str, float] = {}

    def size(self, *, by_bytes: bool) -> int:
        """Bytes or groups."""
        return self.bytes if by_bytes else len(self.groups)

    def add(self, group: RolloutGroup, uses: int) -> None:
        self.groups[group.group_id] = _Entry(group, uses)
        self.bytes += group.size_bytes

    def remove(self, group_id: str) -> int:
        size_bytes = self.groups.pop(group_id).group.size_bytes
        self.bytes -= size_bytes
        return size_bytes

    @property
    def newest_version(self) -> int:
        # Newest of what is held, not of all time: an author that starts over from version 0 is
        # drawn again as soon as its old groups have aged out.
        return max(entry.group.policy_version for entry in self.groups.values())

    def drawable(self, max_policy_lag: int) -> Iterator[_Entry]:
        newest = self.newest_version
        return (e for e in self.groups.values() if newest - e.group.policy_version <= max_policy_lag)


def _content_digest(group: RolloutGroup) -> bytes:
    texts = tuple(completion.text for completion in group.completions_G)
    return hashlib.sha256(msgspec.msgpack.encode((group.task, texts))).digest()
