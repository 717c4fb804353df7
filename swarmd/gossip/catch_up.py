"""Catch-up: a node that joins late asks its peers for the groups they hold, and so starts with a
full buffer. What it gets are envelopes as their authors sealed them; they go through the same
checks as gossip. See protocol/spec/catch-up.md.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
from swarmd_protocol.codec import DecodeLimits, decode, encode
from swarmd_protocol.errors import Reason, Refusal
from swarmd_protocol.messages import CatchUpReply, CatchUpRequest
from swarmd_protocol.topics import CATCH_UP_PROTOCOL
from swarmd_protocol.validation import check_catch_up_request

from swarmd.errors import NetworkError
from swarmd.gossip.peers import PeerBook
from swarmd.gossip.subscription import Received, Subscription
from swarmd.gossip.transport import MAX_REPLY_BYTES, Transport

log = logging.getLogger(__name__)

_PEER_REST_SECONDS = 5.0
_PEERS_REMEMBERED = 1024
_ANSWERS_AT_ONCE = 8
"""Full answers that may be given at once; later ones, to whomever, one each `_PEER_REST_SECONDS`."""
_FRAMING_BYTES = 64 * 1024
_NEXT_AFTER_SECONDS = 3.0
"""A peer that has not answered by then goes on, and another is asked beside it."""
_LOOK_SECONDS = 0.1
_MOST_LOOKS = 600
"""Whether all that a peer gave has been checked."""
_MOST_OF_ONE_PEER = 0.5
"""Of what is wanted."""


class RecentGroups:
    """Sealed envelopes of recent groups, own and received, to serve to peers. Bounded in groups,
    bytes and age; where room is short, the author with most bytes gives up its oldest.

    Args:
        capacity_groups, capacity_bytes: held at most.
        max_age_ms: older groups, by their authors' clocks, would be stale on arrival.
        wall_clock: seconds since the epoch.
    """

    def __init__(
        self,
        capacity_groups: int,
        capacity_bytes: int,
        max_age_ms: int,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._capacity_groups = capacity_groups
        self._capacity_bytes = capacity_bytes
        self._max_age_ms = max_age_ms
        self._wall_clock = wall_clock
        # By number, in order of arrival.
        self._held: dict[int, _Held] = {}
        self._by_author: dict[bytes, deque[int]] = {}
        self._bytes_of: Counter[bytes] = Counter()
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._held)

    def add(self, envelope: bytes, created_ms: int, author: bytes) -> None:
        """Hold an envelope that passed all checks. author: public key."""
        self._arrivals += 1
        self._held[self._arrivals] = _Held(created_ms, envelope)
        self._by_author.setdefault(author, deque()).append(self._arrivals)
        self._bytes_of[author] += len(envelope)
        while len(self._held) > self._capacity_groups or self._bytes_of.total() > self._capacity_bytes:
            self._drop_oldest_of(max(self._bytes_of, key=self._bytes_of.__getitem__))

    def newest(self, since_ms: int, max_groups: int, max_bytes: int) -> tuple[bytes, ...]:
        """Envelopes created at or after `since_ms` and still fresh, newest arrival first, within limits."""
        oldest_ms = max(since_ms, int(self._wall_clock() * 1000) - self._max_age_ms)
        chosen: list[bytes] = []
        room = max_bytes
        for held in reversed(self._held.values()):
            if len(chosen) >= max_groups:
                break
            if held.created_ms >= oldest_ms and len(held.envelope) <= room:
                chosen.append(held.envelope)
                room -= len(held.envelope)
        return tuple(chosen)

    def _drop_oldest_of(self, author: bytes) -> None:
        numbers = self._by_author[author]
        self._bytes_of[author] -= len(self._held.pop(numbers.popleft()).envelope)
        if not numbers:
            del self._by_author[author], self._bytes_of[author]


class _Held(NamedTuple):
    created_ms: int
    envelope: bytes


class CatchUpServer:
    """Answers peers' catch-up requests from the recent groups.

    Args:
        swarm_id: requests for another swarm are refused.
        recent: what there is.
        max_groups, max_bytes: of one answer.
        peers: told what was wrong with whose request. None: nobody asks.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        swarm_id: str,
        recent: RecentGroups,
        max_groups: int,
        max_bytes: int,
        peers: PeerBook | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._swarm_id = swarm_id
        self._recent = recent
        self._max_groups = max_groups
        self._max_bytes = min(max_bytes, MAX_REPLY_BYTES - _FRAMING_BYTES)
        self._peers = peers
        self._clock = clock
        self._answered: OrderedDict[str, float] = OrderedDict()
        self._owed_bytes = 0.0
        self._owed_at = clock()

    async def answer(self, peer_id: str, data: bytes) -> bytes:
        """The encoded reply to an encoded request. Never raises for what the peer sent."""
        request = decode(data, CatchUpRequest)
        if isinstance(request, Refusal):
            return self._refuse(peer_id, request.reason, request.reason.value)
        reason = check_catch_up_request(request, self._swarm_id)
        if reason is not None:
            return self._refuse(peer_id, reason, reason.value)
        if self._is_busy() or not self._may_ask(peer_id):
            return self._refuse(peer_id, Reason.RATE_LIMITED, f"ask again in {_PEER_REST_SECONDS:g} s")
        envelopes = self._recent.newest(
            request.since_ms,
            min(request.max_groups, self._max_groups),
            min(request.max_bytes, self._max_bytes),
        )
        self._owed_bytes += sum(map(len, envelopes))
        return encode(CatchUpReply(envelopes=envelopes))

    def _refuse(self, peer_id: str, reason: Reason, text: str) -> bytes:
        if self._peers is not None:
            self._peers.note_rejected(peer_id, reason)
        return encode(CatchUpReply(refused=text))

    def _is_busy(self) -> bool:
        """Whether so much was sent lately that nobody gets more, whatever name it asks under."""
        now = self._clock()
        rate = self._max_bytes / _PEER_REST_SECONDS
        self._owed_bytes = max(0.0, self._owed_bytes - (now - self._owed_at) * rate)
        self._owed_at = now
        return self._owed_bytes > _ANSWERS_AT_ONCE * self._max_bytes

    def _may_ask(self, peer_id: str) -> bool:
        """Whether the peer has rested since its last answer. Remembers that it asked."""
        now = self._clock()
        if now - self._answered.get(peer_id, -_PEER_REST_SECONDS) < _PEER_REST_SECONDS:
            return False
        self._answered[peer_id] = now
        self._answered.move_to_end(peer_id)
        while len(self._answered) > _PEERS_REMEMBERED:
            self._answered.popitem(last=False)
        return True


class CatchUpResult(msgspec.Struct, frozen=True):
    """What a catch-up brought."""

    envelopes: int
    bytes: int
    peers: int
    """Peers that answered."""


class CatchUp:
    """Asks peers, once each, until enough groups came.

    No peer can use it up: what is not valid counts for nothing, what one peer gives for half at most, and
    one that takes its time is not waited for before the next is asked.

    Args:
        transport: to ask over.
        swarm_id: of the swarm.
        subscription: the envelopes are put before the subscriber like gossip of the peer that gave them.
        max_groups, max_bytes: enough, and the most to ask one peer for.
        max_age_seconds: older groups are not asked for.
        peers: asked whom to listen to and whom to ask first, told what was wrong with whose answer. None:
            everybody is asked.
        valid_from: how many of the groups that a peer gave were valid so far. None: all are.
        request_timeout_seconds: for one peer.
    """

    def __init__(
        self,
        transport: Transport,
        swarm_id: str,
        subscription: Subscription,
        max_groups: int,
        max_bytes: int,
        max_age_seconds: float,
        peers: PeerBook | None = None,
        valid_from: Callable[[str], int] | None = None,
        request_timeout_seconds: float = 15.0,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.result = CatchUpResult(0, 0, 0)
        self._transport = transport
        self._swarm_id = swarm_id
        self._subscription = subscription
        self._max_groups = max_groups
        self._max_bytes = max_bytes
        self._max_age_ms = int(max_age_seconds * 1000)
        self._peers = peers
        self._valid_from = valid_from
        self._request_timeout_seconds = request_timeout_seconds
        self._wall_clock = wall_clock
        self._rng = random.Random()
        self._part_of: dict[str, float] = {}
        """Of what is wanted, by who gave it."""

    async def run(self, patience_seconds: float = 120.0, most_peers: int = 16) -> CatchUpResult:
        """Ask peers as they connect. Ends when enough groups came, `most_peers` were asked, or nobody new
        was found for `patience_seconds`.
        """
        asked: set[str] = set()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience_seconds
        async with asyncio.TaskGroup() as asking:
            while loop.time() < deadline and len(asked) < most_peers and not self._is_enough:
                peer_id = self._next(asked)
                if peer_id is None:
                    await asyncio.sleep(0.5)
                    continue
                asked.add(peer_id)
                task = asking.create_task(self._ask(peer_id))
                await asyncio.wait([task], timeout=_NEXT_AFTER_SECONDS)
                deadline = loop.time() + patience_seconds
        return self.result

    @property
    def _is_enough(self) -> bool:
        return sum(self._part_of.values()) >= 1.0

    def _next(self, asked: set[str]) -> str | None:
        """Whom to ask: those in good standing first, and of the others anybody."""
        new = [peer_id for peer_id in self._transport.state.connected if self._may_ask(peer_id, asked)]
        known = [peer_id for peer_id in new if self._peers is not None and self._peers.is_known(peer_id)]
        return self._rng.choice(known or new) if new else None

    def _may_ask(self, peer_id: str, asked: set[str]) -> bool:
        return peer_id not in asked and (self._peers is None or self._peers.refusal(peer_id) is None)

    async def _ask(self, peer_id: str) -> None:
        request = CatchUpRequest(
            swarm_id=self._swarm_id,
            since_ms=max(0, int(self._wall_clock() * 1000) - self._max_age_ms),
            max_groups=self._max_groups,
            max_bytes=self._max_bytes,
        )
        try:
            data = await self._transport.request(
                peer_id, CATCH_UP_PROTOCOL, encode(request), self._request_timeout_seconds
            )
        except NetworkError as error:
            log.debug("no catch-up from %s: %s", peer_id, error)
            return
        reply = decode(data, CatchUpReply, DecodeLimits(max_bytes=request.max_bytes + _FRAMING_BYTES))
        fault = reply.reason if isinstance(reply, Refusal) else _check_reply(reply, request)
        if fault is not None and self._peers is not None:
            self._peers.note_rejected(peer_id, fault)
        if isinstance(reply, Refusal) or fault is not None or reply.refused is not None:
            log.debug("no catch-up from %s: %s", peer_id, fault or "refused")
            return
        envelopes = reply.envelopes
        # Newest first on the wire; the queue keeps the newest when it overflows.
        for envelope in reversed(envelopes):
            self._subscription.push(Received(peer_id, envelope, asked_for=True))
        self.result = CatchUpResult(
            self.result.envelopes + len(envelopes),
            self.result.bytes + sum(map(len, envelopes)),
            self.result.peers + 1,
        )
        await self._weigh(peer_id, envelopes)

    async def _weigh(self, peer_id: str, envelopes: Sequence[bytes]) -> None:
        """Count what an answer was worth, once it has been looked at."""
        if not envelopes:
            return
        for _ in range(_MOST_LOOKS):
            if self._valid_from is None or not self._subscription.has(peer_id):
                break
            await asyncio.sleep(_LOOK_SECONDS)
        valid = len(envelopes) if self._valid_from is None else self._valid_from(peer_id)
        part = max(
            valid / self._max_groups, sum(map(len, envelopes)) * valid / len(envelopes) / self._max_bytes
        )
        self._part_of[peer_id] = min(_MOST_OF_ONE_PEER, part)


def _check_reply(reply: CatchUpReply, request: CatchUpRequest) -> Reason | None:
    """OVERSIZED for more than was asked for, else None."""
    too_many = len(reply.envelopes) > request.max_groups
    return Reason.OVERSIZED if too_many or sum(map(len, reply.envelopes)) > request.max_bytes else None
