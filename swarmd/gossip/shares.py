"""Fair shares: how many messages, bytes and verifier seconds a peer may use of this node.

Each is a bucket that fills at a steady rate up to what a burst may take. New peers have a small part
of a share. All peers of a neighbourhood together have as much as a few peers, and new peers that were
never connected here have one peer's share together, so that making keys gains nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from swarmd_protocol.errors import Reason

from swarmd.gossip.neighbourhood import UNSEEN, Neighbourhoods

FLOOD = 10.0
"""So many times its share a peer may send before it counts as an attack and not as haste."""
_MOST_ACCOUNTS = 4096
_LARGEST_DEBT_SECONDS = 600.0


@dataclass(frozen=True)
class Share:
    """What one peer in good standing may use."""

    messages_per_second: float
    bytes_per_second: float
    verifier_seconds_per_second: float
    burst_seconds: float
    """Seconds of each rate that may be used at once."""
    newcomer_part: float
    """Part of a share that a new peer has, in (0, 1]."""
    neighbourhood_shares: float
    """Shares that all peers of one neighbourhood have together."""


class PeerShares:
    """The accounts of all peers.

    Args:
        share: of one peer in good standing.
        neighbourhoods: who lives together.
        is_new: whether a peer has yet to show that it is honest.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        share: Share,
        neighbourhoods: Neighbourhoods,
        is_new: Callable[[str], bool],
        clock: Callable[[], float],
    ) -> None:
        self.share = share
        """In force; may be replaced at any time."""
        self._neighbourhoods = neighbourhoods
        self._is_new = is_new
        self._clock = clock
        self._accounts: OrderedDict[str, _Account] = OrderedDict()

    def take(self, peer_id: str, size_bytes: int) -> Reason | None:
        """Book a message before it is looked at. Why it is refused, or None.

        A refused message costs nothing but its place in the count that tells haste from a flood.
        """
        now = self._clock()
        own = self._account(peer_id, now)
        if not own.note_arrival(now, self.share):
            return Reason.FLOODING
        accounts = self._accounts_of(peer_id, now)
        if not all(account.can_pay(size_bytes, part, now, self.share) for account, part in accounts):
            return Reason.RATE_LIMITED
        for account, _ in accounts:
            account.pay(size_bytes)
        return None

    def has_verifier_time(self, peer_id: str) -> bool:
        """Whether what this peer signed may still be scored."""
        now = self._clock()
        accounts = self._accounts_of(peer_id, now)
        return all(account.has_verifier_time(part, now, self.share) for account, part in accounts)

    def charge_verifier(self, peer_id: str, seconds: float) -> None:
        """Scoring what this peer signed took so long. Known only afterwards, so it may make a debt."""
        now = self._clock()
        for account, _ in self._accounts_of(peer_id, now):
            account.verifier_seconds = max(account.verifier_seconds - seconds, -_LARGEST_DEBT_SECONDS)

    def payers(self, peer_id: str) -> dict[str, float]:
        """On whom a peer's use is booked, itself first, each with the shares it has."""
        is_new = self._is_new(peer_id)
        payers = {peer_id: self.share.newcomer_part if is_new else 1.0}
        place = self._neighbourhoods.of(peer_id)
        if place == UNSEEN:
            if is_new:
                payers[place] = 1.0
        elif place is not None:
            payers[place] = self.share.neighbourhood_shares
        return payers

    def _accounts_of(self, peer_id: str, now: float) -> list[tuple[_Account, float]]:
        return [(self._account(name, now), shares) for name, shares in self.payers(peer_id).items()]

    def _account(self, name: str, now: float) -> _Account:
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = _Account(now, self.share)
            while len(self._accounts) > _MOST_ACCOUNTS:
                self._accounts.popitem(last=False)
        self._accounts.move_to_end(name)
        return account


class _Account:
    """Levels of the buckets of one payer, as of `at`. They begin full."""

    __slots__ = ("arrivals", "arrivals_at", "at", "bytes", "messages", "verifier_seconds")

    def __init__(self, now: float, share: Share) -> None:
        self.at = self.arrivals_at = now
        self.messages = self.bytes = self.verifier_seconds = float("inf")
        self.arrivals = FLOOD * share.messages_per_second * share.burst_seconds

    def note_arrival(self, now: float, share: Share) -> bool:
        """Count a message, accepted or not. False: so many come that it is a flood."""
        rate = FLOOD * share.messages_per_second
        level = min(rate * share.burst_seconds, self.arrivals + (now - self.arrivals_at) * rate)
        self.arrivals_at = now
        self.arrivals = max(0.0, level - 1.0)
        return level >= 1.0

    def can_pay(self, size_bytes: int, part: float, now: float, share: Share) -> bool:
        """Whether there is room for a message. Its scoring is not known yet: no debt is enough."""
        self._fill(part, now, share)
        return self.messages >= 1.0 and self.bytes >= size_bytes and self.verifier_seconds > 0.0

    def pay(self, size_bytes: int) -> None:
        """Take a message's cost out."""
        self.messages -= 1.0
        self.bytes -= size_bytes

    def has_verifier_time(self, part: float, now: float, share: Share) -> bool:
        """Whether there is no debt."""
        self._fill(part, now, share)
        return self.verifier_seconds > 0.0

    def _fill(self, part: float, now: float, share: Share) -> None:
        elapsed, self.at = now - self.at, now
        burst = share.burst_seconds
        rate = part * share.messages_per_second
        self.messages = min(max(rate * burst, 1.0), self.messages + elapsed * rate)
        rate = part * share.bytes_per_second
        self.bytes = min(rate * burst, self.bytes + elapsed * rate)
        rate = part * share.verifier_seconds_per_second
        self.verifier_seconds = min(rate * burst, self.verifier_seconds + elapsed * rate)
