"""Receiving rollout groups: from bytes of the topic to messages that passed every check which needs
no task to be regenerated. Nothing a peer sends raises here; what is not accepted is counted.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Self

import msgspec
from swarmd_protocol.codec import decode
from swarmd_protocol.envelope import EnvelopeLimits, Verify, open_envelope
from swarmd_protocol.errors import Reason, Refusal
from swarmd_protocol.messages import RolloutGroupMessage
from swarmd_protocol.peer_id import peer_id_of
from swarmd_protocol.validation import GroupLimits, check_group

from swarmd.gossip.catch_up import RecentGroups
from swarmd.gossip.peers import PeerBook
from swarmd.gossip.transport import Received, Subscription

SEEN_GROUPS = 65_536


class OpenedGroup(msgspec.Struct, frozen=True):
    """A checked group and who signed it. Its task and its rewards are still to be found out here."""

    author: str
    """Peer id."""
    message: RolloutGroupMessage


class Subscriber:
    """Iterates over checked groups. Several consumers may iterate; each group goes to one.

    Args:
        own_peer_id: own groups that come back by catch-up are passed over.
        subscription: of the swarm's topic.
        verify: checks a signature.
        envelope_limits, group_limits: what is accepted.
        peers: counts by peer what was not accepted.
        recent: holds accepted envelopes for peers that catch up.
        wall_clock: seconds since the epoch.
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
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.received = 0
        """Messages taken from the subscription."""
        self.opened = 0
        """Groups handed out."""
        self._own_peer_id = own_peer_id
        self._subscription = subscription
        self._verify = verify
        self._envelope_limits = envelope_limits
        self._group_limits = group_limits
        self._peers = peers
        self._recent = recent
        self._wall_clock = wall_clock
        self._seen: OrderedDict[tuple[bytes, bytes], None] = OrderedDict()

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
            if opened is not None:
                self.opened += 1
                return opened

    def _open(self, received: Received) -> OpenedGroup | None:
        now_ms = int(self._wall_clock() * 1000)
        envelope = open_envelope(received.data, self._verify, self._envelope_limits, now_ms)
        if isinstance(envelope, Refusal):
            # Who is named as the author has not been proven: it is on the peer that sent it.
            self._peers.note_rejected(received.source, envelope.reason)
            return None
        author = peer_id_of(envelope.author)
        if author == self._own_peer_id:
            return None
        message = decode(envelope.payload, RolloutGroupMessage)
        if isinstance(message, Refusal):
            self._peers.note_rejected(author, message.reason)
            return None
        reason = check_group(message, self._group_limits, now_ms)
        if reason is None and not self._is_new(envelope.author, message.group_id):
            reason = Reason.DUPLICATE
        if reason is not None:
            self._peers.note_rejected(author, reason)
            return None
        self._recent.add(received.data, message.created_ms)
        return OpenedGroup(author, message)

    def _is_new(self, author: bytes, group_id: bytes) -> bool:
        """Whether the group was not seen before. Remembers it."""
        key = (author, group_id)
        if key in self._seen:
            return False
        self._seen[key] = None
        while len(self._seen) > SEEN_GROUPS:
            self._seen.popitem(last=False)
        return True
