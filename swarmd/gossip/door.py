"""The door: what may wait to be looked at. Decides from source, size and number of a message alone,
before anything in it is read, so that a flood costs next to nothing.
"""

from __future__ import annotations

from swarmd_protocol.errors import Reason

from swarmd.gossip.peers import PeerBook
from swarmd.gossip.seen import ReplayWindow
from swarmd.gossip.shares import PeerShares
from swarmd.gossip.subscription import Received


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
        if number is not None and self._replays.is_copy(source, number):
            # Who sent it again is not known. Its publisher did not.
            self._peers.note_unattributed(Reason.DUPLICATE)
            return False
        refusal = self._shares.take(source, len(received.data))
        if refusal is not Reason.FLOODING:
            refusal = self._peers.refusal(source) or refusal
        if refusal is not None:
            self._peers.note_rejected(source, refusal)
            return False
        if number is not None:
            self._replays.note(source, number)
        return True

    def note_dropped(self, source: str) -> None:
        """A message of this peer had to leave a full queue."""
        self._peers.note_rejected(source, Reason.QUEUE_FULL)
