"""Receiving rollout groups: from bytes of the topic to messages that passed every check which needs
no task to be regenerated. Nothing a peer sends raises here; what is not accepted is counted.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Self

import msgspec
from swarmd_protocol.bounds import MAX_COUNTER
from swarmd_protocol.codec import decode
from swarmd_protocol.envelope import Envelope, EnvelopeLimits, Verify, open_envelope
from swarmd_protocol.errors import Reason, Refusal
from swarmd_protocol.messages import RolloutGroupMessage
from swarmd_protocol.peer_id import peer_id_of
from swarmd_protocol.validation import GroupLimits, check_group

from swarmd.gossip.catch_up import RecentGroups
from swarmd.gossip.clock_skew import ClockSkew
from swarmd.gossip.peers import PeerBook
from swarmd.gossip.seen import PolicyVersions, SeenGroups
from swarmd.gossip.shares import PeerShares
from swarmd.gossip.subscription import Received, Subscription

_OF_TIME = frozenset({Reason.STALE, Reason.FROM_FUTURE})
_OF_THE_BEARER = frozenset({Reason.DUPLICATE, Reason.STALE})
"""Whoever holds a group back or sends it again is at fault, not who once signed it."""


class OpenedGroup(msgspec.Struct, frozen=True):
    """A checked group and who signed it. Its task and its rewards are still to be found out here."""

    author: str
    """Peer id."""
    source: str
    """Peer id of who sent it here."""
    message: RolloutGroupMessage


class Subscriber:
    """Iterates over checked groups. Several consumers may iterate; each group goes to one, which says
    `done` when it is.

    Args:
        own_peer_id: own groups that come back by catch-up are passed over.
        subscription: of the swarm's topic.
        verify: checks a signature.
        envelope_limits, group_limits: what is accepted.
        peers: counts by peer what was not accepted.
        recent: holds accepted envelopes for peers that catch up.
        shares: says whether an author has verifier time left. None: everybody has.
        clock_skew: told when messages were sealed. None: nobody asks.
        wall_clock: seconds since the epoch.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        own_peer_id: str,
        subscription: Subscription,
        verify: Verify,
        envelope_limits: EnvelopeLimits,
        group_limits: GroupLimits,
        peers: PeerBook,
        recent: RecentGroups,
        shares: PeerShares | None = None,
        clock_skew: ClockSkew | None = None,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.received = 0
        """Messages taken from the subscription."""
        self.opened = 0
        """Groups handed out."""
        self._caught_up: Counter[str] = Counter()
        self._own_peer_id = own_peer_id
        self._subscription = subscription
        self._verify = verify
        self._envelope_limits = envelope_limits
        self._group_limits = group_limits
        self._peers = peers
        self._recent = recent
        self._shares = shares
        self._clock_skew = clock_skew
        self._wall_clock = wall_clock
        keep_seconds = (group_limits.max_age_ms + group_limits.max_skew_ms) / 1000
        self._seen = SeenGroups(keep_seconds, clock=clock)
        self._versions = PolicyVersions(clock)

    @property
    def dropped(self) -> int:
        """Messages that the full queue dropped."""
        return self._subscription.dropped

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> OpenedGroup:
        while True:
            received = await self._subscription.__anext__()
            self.received += 1
            opened = self._open(received)
            # A flood of bad messages must not keep the loop from everything else.
            await asyncio.sleep(0)
            if received.asked_for and not isinstance(opened, tuple):
                self._caught_up[received.source] += 1
            if isinstance(opened, OpenedGroup):
                self.opened += 1
                return opened
            if opened is not None:
                self._peers.note_rejected(*opened)
            self._subscription.release(received.source)

    def caught_up_from(self, peer_id: str) -> int:
        """Groups of a peer's answer to our request that were valid, whether or not they were new."""
        return self._caught_up[peer_id]

    def done(self, opened: OpenedGroup) -> None:
        """The consumer is done with this group: the next one of the same peer may follow."""
        self._subscription.release(opened.source)

    def _open(self, received: Received) -> OpenedGroup | tuple[str, Reason] | None:
        """The group, or who is at fault for what. None: nobody; our own come back, or one asked for again."""
        source = received.source
        # A peer may have lost its good name while its messages waited.
        refusal = self._peers.refusal(source)
        if refusal is not None:
            return source, refusal
        now_ms = int(self._wall_clock() * 1000)
        envelope = open_envelope(received.data, self._verify, self._envelope_limits, now_ms)
        self._note_time(received, envelope, now_ms)
        if isinstance(envelope, Refusal):
            # Who is named as the author has not been proven: it is on the peer that sent it.
            return source, envelope.reason
        author = peer_id_of(envelope.author)
        if author == self._own_peer_id:
            return None
        reason = self._refusal_of(author)
        message = decode(envelope.payload, RolloutGroupMessage) if reason is None else Refusal(reason)
        if isinstance(message, Refusal):
            return author, message.reason
        reason = check_group(message, self._group_limits, now_ms) or self._history(envelope.author, message)
        if reason is Reason.DUPLICATE and received.asked_for:
            # Gossip was faster than the answer: nobody's fault.
            return None
        if reason is not None:
            return source if reason in _OF_THE_BEARER else author, reason
        self._recent.add(received.data, message.created_ms, envelope.author)
        return OpenedGroup(author, source, message)

    def _note_time(self, received: Received, envelope: Envelope | Refusal, now_ms: int) -> None:
        """Take in when a message was sealed, also of one that this clock finds too old or too new: then
        it may be this clock that is wrong.
        """
        skew, arrived_at = self._clock_skew, received.arrived_at
        if skew is None or arrived_at is None:
            return
        if isinstance(envelope, Refusal):
            if envelope.reason not in _OF_TIME or not skew.take_look(received.source):
                return
            at_any_time = msgspec.structs.replace(
                self._envelope_limits, max_age_ms=None, max_skew_ms=MAX_COUNTER
            )
            envelope = open_envelope(received.data, self._verify, at_any_time, now_ms)
        # Who sends again what another has sealed says nothing about a clock.
        if isinstance(envelope, Envelope) and peer_id_of(envelope.author) == received.source:
            skew.note(received.source, envelope.created_ms, arrived_at)

    def _refusal_of(self, author: str) -> Reason | None:
        """Why nothing that this peer signed is looked at now, whoever passed it on."""
        refusal = self._peers.refusal(author)
        if refusal is None and self._shares is not None and not self._shares.has_verifier_time(author):
            return Reason.RATE_LIMITED
        return refusal

    def _history(self, author: bytes, message: RolloutGroupMessage) -> Reason | None:
        """Why a group does not fit to what the author sent before. Remembers it."""
        if not self._seen.add(author, message.group_id):
            return Reason.DUPLICATE
        return None if self._versions.follows(author, message.policy_version) else Reason.VERSION_JUMP
