"""How far this node's clock is off, seen against those of its peers: their signed messages say when they
were sealed, and what arrives later than that by more than a journey takes was sealed by another clock.

Of each peer the quickest of its last messages counts, since a message can be late and never early. Over
peers the median counts, so that neither one liar nor one slow line moves it.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable

__all__ = ["ClockSkew"]

SAID_FROM_SECONDS = 5.0
"""Less is said to nobody: it harms nothing, and messages take some time."""
SAID_UNTIL_SECONDS = 3.0
REMEMBERED_SECONDS = 300.0
_MESSAGES = 8
_MOST_PEERS = 256
_LOOK_EVERY_SECONDS = 10.0


class ClockSkew:
    """Messages' times by peer, kept against the monotonic clock: setting this node's clock shows at once.

    Args:
        clock: monotonic seconds.
        wall_clock: seconds since the epoch.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._of: OrderedDict[str, _Peer] = OrderedDict()
        self._said: float | None = None

    def take_look(self, peer_id: str) -> bool:
        """Whether to look at the signature of a message that this peer sent and that is refused for its time.
        Once in a while, whatever comes of it: a look costs more than the refusal.
        """
        now, peer = self._clock(), self._peer(peer_id)
        if now - peer.looked_at < _LOOK_EVERY_SECONDS:
            return False
        peer.looked_at = now
        return True

    def note(self, peer_id: str, created_ms: int, arrived_at: float) -> None:
        """A message of this peer, under its signature, says it was sealed then; it arrived at `arrived_at`
        on the monotonic clock.
        """
        peer = self._peer(peer_id)
        peer.at = arrived_at
        peer.ahead.append(created_ms / 1000 - arrived_at)

    def seconds(self) -> float | None:
        """Seconds that this clock is ahead of the peers' (behind: negative). None: nothing was heard lately.

        With an even number of peers that of the two in the middle that is nearer to zero: of two, both
        must differ.
        """
        now = self._clock()
        own = self._wall_clock() - now
        skews = sorted(own - max(peer.ahead) for peer in self._heard(now))
        if not skews:
            return None
        middle = skews[(len(skews) - 1) // 2], skews[len(skews) // 2]
        return min(middle, key=abs)

    @property
    def peers(self) -> int:
        """Peers that count now."""
        return len(self._heard(self._clock()))

    def problem(self) -> str:
        """What to tell a person, in one line. Empty while the clock is right, as far as is known."""
        seconds = self.seconds()
        return self._line(seconds) if seconds is not None and abs(seconds) >= SAID_FROM_SECONDS else ""

    def change(self) -> str:
        """A line for the log when something has changed since the last one, else nothing."""
        seconds = self.seconds()
        if seconds is None:
            return ""
        if abs(seconds) >= SAID_FROM_SECONDS:
            if self._said is not None and abs(seconds - self._said) < max(
                SAID_FROM_SECONDS, abs(self._said) / 2
            ):
                return ""
            self._said = seconds
            return self._line(seconds)
        if self._said is not None and abs(seconds) < SAID_UNTIL_SECONDS:
            self._said = None
            return "this clock agrees with those of your peers again"
        return ""

    def _line(self, seconds: float) -> str:
        direction = "ahead of" if seconds > 0 else "behind"
        who = "your peers" if self.peers > 1 else "the only peer that was heard"
        return f"this clock is {abs(seconds):.0f} s {direction} {who}: set it, by NTP for instance"

    def _heard(self, now: float) -> list[_Peer]:
        return [peer for peer in self._of.values() if peer.ahead and now - peer.at <= REMEMBERED_SECONDS]

    def _peer(self, peer_id: str) -> _Peer:
        peer = self._of.setdefault(peer_id, _Peer())
        self._of.move_to_end(peer_id)
        while len(self._of) > _MOST_PEERS:
            self._of.popitem(last=False)
        return peer


class _Peer:
    """What one peer's last messages say."""

    __slots__ = ("ahead", "at", "looked_at")

    def __init__(self) -> None:
        self.ahead: deque[float] = deque(maxlen=_MESSAGES)
        """Of each the time it was sealed, minus the monotonic time it arrived; late ones have less."""
        self.at = 0.0
        """When the last one arrived."""
        self.looked_at = float("-inf")
        """When the signature of one that was refused was looked at last."""
