"""What this node knows about its peers: what they say of themselves, and what became of what they
sent. Bounded: those without an accepted group are forgotten first, the one not heard from for longest
before others, so that a crowd of new keys displaces itself.

Peers with addresses are remembered in a file, so that the next run finds them without a bootstrap peer.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from swarmd_protocol.errors import Reason
from swarmd_protocol.messages import NodeRecordMessage

from swarmd.gossip.kept_file import replace_file, set_aside
from swarmd.gossip.reputation import Reputation, ReputationView
from swarmd.gossip.transport import KnownPeer

_MOST_PEERS = 1024
_MOST_REMEMBERED = 128
_LARGEST_FILE_BYTES = 1_000_000
_FORMAT = 1


class PeerView(msgspec.Struct, frozen=True):
    """One peer, for people. Name, model, round and addresses are the peer's own claims."""

    peer_id: str
    name: str
    model: str
    round: int | None
    """None until a record of the peer was read."""
    policy_version: int | None
    addresses: tuple[str, ...]
    connected: bool
    accepted: int
    """Groups of this author that passed all checks and were scored."""
    rejected: dict[str, int]
    """What was not accepted, by reason."""
    screened: dict[str, int]
    """Accepted groups that a screen held up, by screen."""
    last_seen_seconds: float | None
    """Since anything was last heard of the peer. None: not in this run."""
    reputation: ReputationView | None
    """None where nobody is a stranger and no reputation is kept."""


@dataclass
class _Peer:
    seen_at: float
    record: NodeRecordMessage | None = None
    accepted: int = 0
    useful: int = 0
    rejected: Counter[Reason] = field(default_factory=Counter)
    screened: Counter[str] = field(default_factory=Counter)


class PeerBook:
    """Records and counts by peer id.

    Args:
        own_peer_id: left out of the views.
        reputation: told what became of messages, asked whom to listen to. None: everybody is listened to.
        clock: monotonic seconds.
        most_peers: how many are kept.
    """

    def __init__(
        self,
        own_peer_id: str,
        reputation: Reputation | None = None,
        clock: Callable[[], float] = time.monotonic,
        most_peers: int = _MOST_PEERS,
    ) -> None:
        self.reputation = reputation
        self._own_peer_id = own_peer_id
        self._clock = clock
        self._most_peers = most_peers
        self._strangers: OrderedDict[str, _Peer] = OrderedDict()
        self._proven: OrderedDict[str, _Peer] = OrderedDict()
        """Those with an accepted group."""
        self._rejected: Counter[Reason] = Counter()
        self._accepted = 0

    @property
    def accepted(self) -> int:
        """Groups accepted from all peers since the start."""
        return self._accepted

    @property
    def rejected(self) -> dict[str, int]:
        """What was not accepted from anybody since the start, by reason."""
        return {reason.value: count for reason, count in self._rejected.items()}

    def refusal(self, peer_id: str) -> Reason | None:
        """Why nothing is taken from this peer now, or None."""
        return self.reputation.refusal(peer_id) if self.reputation else None

    def is_known(self, peer_id: str) -> bool:
        """Whether a peer has shown that it is honest."""
        return self.reputation is not None and not self.reputation.is_new(peer_id)

    def note_accepted(self, peer_id: str, *, useful: bool) -> None:
        """A group of this author was scored and offered to the buffer. useful: its rewards differ."""
        peer = self._peer(peer_id)
        peer.accepted += 1
        peer.useful += useful
        if peer_id in self._strangers:
            self._proven[peer_id] = self._strangers.pop(peer_id)
        self._accepted += 1
        if self.reputation:
            self.reputation.note_valid(peer_id, useful)

    def note_rejected(self, peer_id: str, reason: Reason) -> None:
        """Something this peer wrote or passed on was not accepted."""
        self._peer(peer_id).rejected[reason] += 1
        self._rejected[reason] += 1
        if self.reputation:
            self.reputation.note_refused(peer_id, reason)

    def note_screened(self, peer_id: str, screen: str) -> None:
        """A screen held up an accepted group of this author. No breach of a rule, and none is booked."""
        self._peer(peer_id).screened[screen] += 1

    def usefulness(self, peer_id: str) -> float | None:
        """Groups of this author whose rewards differ, as a share of the valid ones: lately where a
        reputation is kept, else since the start. None where nothing was counted.
        """
        if self.reputation:
            return self.reputation.view(peer_id).usefulness
        peer = self._proven.get(peer_id)
        return peer.useful / peer.accepted if peer else None

    def note_unattributed(self, reason: Reason) -> None:
        """Something was not accepted, and nobody knows whose doing it was."""
        self._rejected[reason] += 1

    def note_record(self, peer_id: str, record: NodeRecordMessage) -> None:
        """A checked record of this peer. An older one than the one at hand changes nothing."""
        peer = self._proven.get(peer_id) or self._strangers.get(peer_id)
        # Others hold a record for a while after its owner is gone: read again, it is no sign of life.
        if peer is None or peer.record is None or peer.record.created_ms < record.created_ms:
            self._peer(peer_id).record = record

    def note_connected(self, peer_ids: Iterable[str]) -> None:
        """These peers are connected now."""
        for peer_id in peer_ids:
            self._peer(peer_id)

    def views(self, connected: Iterable[str]) -> tuple[PeerView, ...]:
        """All peers, the connected ones first, then by how recently they were heard of. Those the
        operator named are among them, heard of or not.
        """
        online = set(connected)
        views = [
            self._view(peer_id, peer, peer_id in online)
            for peer_id, peer in (*self._strangers.items(), *self._proven.items())
            if peer_id != self._own_peer_id
        ]
        heard_of = {view.peer_id for view in views}
        named = self.reputation.named() if self.reputation else ()
        views += [self._view(peer_id, None, False) for peer_id in named if peer_id not in heard_of]
        return tuple(sorted(views, key=_most_recent_first))

    def known_peers(self) -> tuple[KnownPeer, ...]:
        """Peers with addresses, the most recently heard of last."""
        return tuple(
            KnownPeer(peer_id, peer.record.addresses)
            for peer_id, peer in (*self._strangers.items(), *self._proven.items())
            if peer.record is not None and peer.record.addresses and peer_id != self._own_peer_id
        )

    def _peer(self, peer_id: str) -> _Peer:
        kept = self._proven if peer_id in self._proven else self._strangers
        peer = kept.get(peer_id)
        if peer is None:
            peer = kept[peer_id] = _Peer(self._clock())
            while len(self._strangers) + len(self._proven) > self._most_peers:
                (self._strangers if len(self._strangers) > 1 else self._proven).popitem(last=False)
        peer.seen_at = self._clock()
        kept.move_to_end(peer_id)
        return peer

    def _view(self, peer_id: str, peer: _Peer | None, connected: bool) -> PeerView:
        record = peer.record if peer else None
        return PeerView(
            peer_id=peer_id,
            name=record.name if record else "",
            model=record.model if record else "",
            round=record.round if record else None,
            policy_version=record.policy_version if record else None,
            addresses=record.addresses if record else (),
            connected=connected,
            accepted=peer.accepted if peer else 0,
            rejected={reason.value: count for reason, count in peer.rejected.items()} if peer else {},
            screened=dict(peer.screened) if peer else {},
            last_seen_seconds=self._clock() - peer.seen_at if peer else None,
            reputation=self.reputation.view(peer_id) if self.reputation else None,
        )


def _most_recent_first(view: PeerView) -> tuple[bool, float]:
    seen = view.last_seen_seconds
    return not view.connected, float("inf") if seen is None else seen


def save_known_peers(
    path: Path, peers: Iterable[KnownPeer], connected: Mapping[str, tuple[str, ...]]
) -> None:
    """Write the peers to remember, replacing the file in one step. Raises OSError.

    peers: with the addresses of their records, those worth most last. connected: peers connected now, for
    those without a record.
    """
    recorded = {peer.peer_id: peer for peer in peers}
    met = (KnownPeer(peer_id, where) for peer_id, where in connected.items() if where)
    # Those who only connected come first, and so are left out first.
    remembered = (*(peer for peer in met if peer.peer_id not in recorded), *recorded.values())
    replace_file(path, _File(_FORMAT, remembered[-_MOST_REMEMBERED:]))


def load_known_peers(path: Path) -> tuple[tuple[KnownPeer, ...], str]:
    """The remembered peers, and what is wrong with the file, in a line.

    A file that is missing or damaged has none: it is only a convenience. One of a newer swarmd is set aside.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_FILE_BYTES)
        kept = msgspec.json.decode(data, type=_Format | tuple[KnownPeer, ...])
        if isinstance(kept, tuple):  # As it was before it had a format.
            return kept[-_MOST_REMEMBERED:], ""
        if kept.format > _FORMAT:
            return (), set_aside(path, kept.format, _FORMAT)
        return msgspec.json.decode(data, type=_File).peers[-_MOST_REMEMBERED:], ""
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return (), ""


class _Format(msgspec.Struct, frozen=True):
    format: int


class _File(msgspec.Struct, frozen=True):
    """The form on disk."""

    format: int
    peers: tuple[KnownPeer, ...]
