"""Peers worth dialling when connections are few, and when to try each next. Bounded."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable

from swarmd.gossip.dialer import Backoff
from swarmd.gossip.transport import KnownPeer

_CAPACITY = 256
_ADDRESSES_EACH = 8


class KnownPeers:
    """Addresses of peers, newest last, each with its own pauses between failed tries.

    Args:
        own_peer_id: never dialled.
        backoff: pauses between tries of one peer.
        is_known: whether a peer is in good standing. Strangers are forgotten first.
    """

    def __init__(
        self, own_peer_id: str, backoff: Backoff, is_known: Callable[[str], bool] = lambda peer_id: False
    ) -> None:
        self._is_known = is_known
        self._own_peer_id = own_peer_id
        self._backoff = backoff
        self._rng = random.Random()
        self._peers: OrderedDict[str, KnownPeer] = OrderedDict()
        self._failures: dict[str, int] = {}
        self._due: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._peers)

    def add(self, peers: Iterable[KnownPeer]) -> None:
        """Remember peers; new addresses replace old ones and are tried at once."""
        for peer in peers:
            addresses = peer.addresses[:_ADDRESSES_EACH]
            if peer.peer_id == self._own_peer_id or not addresses:
                continue
            before = self._peers.pop(peer.peer_id, None)
            self._peers[peer.peer_id] = KnownPeer(peer.peer_id, addresses)
            if before is None or before.addresses != addresses:
                self._forget_tries(peer.peer_id)
            while len(self._peers) > _CAPACITY:
                strangers = (each for each in self._peers if not self._is_known(each))
                oldest = next(strangers, next(iter(self._peers)))
                del self._peers[oldest]
                self._forget_tries(oldest)

    def take_due(
        self, most: int, connected: Container[str], now: float, *, in_good_standing: bool = False
    ) -> list[KnownPeer]:
        """Up to `most` unconnected peers whose pause is over, newest first. Each counts as tried.

        now: monotonic seconds. in_good_standing: no strangers.
        """
        due: list[KnownPeer] = []
        for peer in reversed(self._peers.values()):
            if peer.peer_id in connected:
                self._forget_tries(peer.peer_id)
            elif in_good_standing and not self._is_known(peer.peer_id):
                continue
            elif len(due) < most and self._due.get(peer.peer_id, 0.0) <= now:
                due.append(peer)
        for peer in due:
            failures = self._failures.get(peer.peer_id, 0) + 1
            self._failures[peer.peer_id] = failures
            self._due[peer.peer_id] = now + self._backoff.pause(failures, self._rng)
        return due

    def _forget_tries(self, peer_id: str) -> None:
        self._failures.pop(peer_id, None)
        self._due.pop(peer_id, None)
