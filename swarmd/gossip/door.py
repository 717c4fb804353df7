"""The door: what may wait to be looked at. Decides from source, size and number of a message alone,
before anything in it is read, so that a flood costs next to nothing.
"""

from __future__ import annotations

from swarmd_protocol.errors import Reason

from swarmd.gossip.peers import PeerBook
from swarmd.gossip.seen import ReplayWindow
from swarmd.gossip.shares import PeerShares
from swarmd.gossip.subscription import Received

_NUMBERS = 2**64
"""Publishers count with eight bytes. A longer number would be remembered whole."""


class PeerDoor:
    """Admits what comes from peers in good standing, within their shares. Counts the rest for them.

    Args:
        peers: asked whom to listen to, told what was refused.
        shares: what each peer may send.
        replays: tells copies.
    """

    def __init__(self, peers: PeerBook, shares: PeerShares, replays: ReplayWindow) -> None:
        self._peers = peers
        self._shares = shares
        self._replays = replays

    def admits(self, received: Received) -> bool:
        """Whether a message may take room in the queue."""
        source, number = received.source, received.sequence
        if number is not None and number >= _NUMBERS:
            self._peers.note_rejected(source, Reason.MALFORMED)
            return False
        if number is not None and self._replays.is_copy(source, number):
            # Who sent it again is not known. Its publisher did not.
            self._peers.note_unattributed(Reason.DUPLICATE)
            return False
        refusal = _refusal(self._peers, self._shares, source, len(received.data))
        if refusal is not None:
            self._peers.note_rejected(source, refusal)
            return False
        if number is not None:
            self._replays.note(source, number)
        return True

    def note_dropped(self, source: str) -> None:
        """A message of this peer had to leave a full queue."""
        self._peers.note_rejected(source, Reason.QUEUE_FULL)


class RequestDoor:
    """Decides which requests to the DHT are looked at, from sender and size alone. Counts the rest for them.

    Args:
        peers: asked whom to listen to, told what was refused.
        shares: what each peer may ask for; not those of its messages.
    """

    def __init__(self, peers: PeerBook, shares: PeerShares) -> None:
        self._peers = peers
        self._shares = shares

    def admits(self, peer_id: str, size_bytes: int) -> bool:
        """Whether a request is parsed."""
        refusal = _refusal(self._peers, self._shares, peer_id, size_bytes)
        if refusal is not None:
            self._peers.note_rejected(peer_id, refusal)
        return refusal is None


def _refusal(peers: PeerBook, shares: PeerShares, peer_id: str, size_bytes: int) -> Reason | None:
    """Why nothing of that size is taken from a peer now. Being flooded counts also while it is ignored."""
    refusal = shares.take(peer_id, size_bytes)
    return refusal if refusal is Reason.FLOODING else peers.refusal(peer_id) or refusal
