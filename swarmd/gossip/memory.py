"""The transport inside one process, for simulation and tests: same interface, no sockets.

Messages take a random delay and may be lost; both follow the network's seed. Everybody in the
network is connected to everybody. Requests and records take a delay too, and are never lost.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Self

from swarmd.gossip.subscription import Received, Subscription
from swarmd.gossip.transport import (
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    KnownPeer,
    RequestError,
    RequestHandler,
    TransportDownError,
    TransportState,
    check_message_size,
    check_record_size,
)

_MOST_UNDERWAY = 100_000


class InMemoryNetwork:
    """Carries messages between its transports.

    Args:
        seed: of delays and losses.
        delay_seconds: a message takes between the first and the second.
        loss: probability that a message does not reach one subscriber.
        clock: seconds, for the expiry of records.
    """

    def __init__(
        self,
        seed: int = 0,
        delay_seconds: tuple[float, float] = (0.0, 0.0),
        loss: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 <= loss < 1 or not 0 <= delay_seconds[0] <= delay_seconds[1]:
            raise ValueError(f"not a network: loss {loss}, delay {delay_seconds}")
        self.lost = 0
        self._rng = random.Random(seed)
        self._delay_seconds = delay_seconds
        self._loss = loss
        self._clock = clock
        self._members: dict[str, InMemoryTransport] = {}
        self._records: dict[str, dict[str, tuple[bytes, float]]] = {}
        self._underway = 0

    def transport(self, peer_id: str) -> InMemoryTransport:
        """A transport of this network. Enter it to be reachable."""
        return InMemoryTransport(self, peer_id)

    def join(self, member: InMemoryTransport) -> None:
        """Called by a transport that comes up."""
        if member.peer_id in self._members:
            raise ValueError(f"peer {member.peer_id} is in the network already")
        self._members[member.peer_id] = member

    def leave(self, member: InMemoryTransport) -> None:
        """Called by a transport that closes. Its records stay until they expire."""
        self._members.pop(member.peer_id, None)

    def others(self, peer_id: str) -> tuple[str, ...]:
        """Peer ids of the other members."""
        return tuple(other for other in self._members if other != peer_id)

    def member(self, peer_id: str) -> InMemoryTransport:
        """A member by peer id. Raises RequestError when there is none."""
        if peer_id not in self._members:
            raise RequestError(f"no peer {peer_id} can be reached")
        return self._members[peer_id]

    def broadcast(self, source: str, topic: str, data: bytes) -> None:
        """Start a message on its way to every other member."""
        for peer_id in self.others(source):
            if self._rng.random() < self._loss or self._underway >= _MOST_UNDERWAY:
                self.lost += 1
                continue
            self._underway += 1
            asyncio.get_running_loop().call_later(
                self._pause(), self._arrive, peer_id, topic, Received(source, data)
            )

    async def travel(self) -> None:
        """Wait as long as a message takes."""
        await asyncio.sleep(self._pause())

    def put(self, key: str, subkey: str, value: bytes, ttl_seconds: float) -> None:
        """Store a record."""
        self._records.setdefault(key, {})[subkey] = (value, self._clock() + ttl_seconds)

    def get(self, key: str) -> Mapping[str, bytes]:
        """Unexpired records; expired ones are removed."""
        now = self._clock()
        held = {subkey: record for subkey, record in self._records.get(key, {}).items() if record[1] > now}
        self._records[key] = held
        return {subkey: value for subkey, (value, _) in held.items()}

    def _pause(self) -> float:
        pause: float = self._rng.uniform(*self._delay_seconds)
        return pause

    def _arrive(self, peer_id: str, topic: str, received: Received) -> None:
        self._underway -= 1
        if peer_id in self._members:
            self._members[peer_id].deliver(topic, received)


class InMemoryTransport:
    """One node's end of an InMemoryNetwork; see `Transport` for what the methods promise."""

    def __init__(self, network: InMemoryNetwork, peer_id: str) -> None:
        self._network = network
        self._peer_id = peer_id
        self._up = False
        self._subscriptions: dict[str, Subscription] = {}
        self._handlers: dict[str, RequestHandler] = {}

    @property
    def peer_id(self) -> str:
        """This node's peer id."""
        return self._peer_id

    @property
    def state(self) -> TransportState:
        """Connected to all other members."""
        address = f"/memory/{self._peer_id}"
        others = self._network.others(self._peer_id) if self._up else ()
        return TransportState(
            up=self._up,
            addresses=(address,) if self._up else (),
            connected={peer_id: (f"/memory/{peer_id}",) for peer_id in others},
            bootstrap=(),
            restarts=0,
            notes=(),
        )

    async def __aenter__(self) -> Self:
        """Become reachable."""
        self._network.join(self)
        self._up = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the network and end the subscriptions."""
        self._up = False
        self._network.leave(self)
        for subscription in self._subscriptions.values():
            subscription.close()

    async def publish(self, topic: str, data: bytes) -> None:
        """Send to all other members that subscribe to the topic."""
        check_message_size(data)
        self._require_up()
        self._network.broadcast(self._peer_id, topic, data)

    def subscribe(self, subscription: Subscription) -> Subscription:
        """Receive its topic from now on."""
        if subscription.topic in self._subscriptions:
            raise ValueError(f"topic {subscription.topic!r} has a subscription already")
        self._subscriptions[subscription.topic] = subscription
        return subscription

    async def put_record(self, key: str, value: bytes, ttl_seconds: float) -> bool:
        """Store our record in the network."""
        check_record_size(value)
        self._require_up()
        await self._network.travel()
        self._network.put(key, self._peer_id, value, ttl_seconds)
        return True

    async def get_records(self, key: str, timeout_seconds: float = 10.0) -> Mapping[str, bytes]:
        """Unexpired records of the network under `key`."""
        self._require_up()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._network.travel()
        except TimeoutError:
            return {}
        return self._network.get(key)

    def serve(self, protocol: str, handler: RequestHandler) -> None:
        """Answer requests of a protocol."""
        if protocol in self._handlers:
            raise ValueError(f"protocol {protocol!r} is served already")
        self._handlers[protocol] = handler

    async def request(self, peer_id: str, protocol: str, data: bytes, timeout_seconds: float) -> bytes:
        """Ask one member."""
        self._require_up()
        if len(data) > MAX_REQUEST_BYTES:
            raise RequestError(f"a request may have {MAX_REQUEST_BYTES} bytes at most, got {len(data)}")
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._network.travel()
                reply = await self._network.member(peer_id).answer(self._peer_id, protocol, data)
                await self._network.travel()
        except TimeoutError as error:
            raise RequestError(f"no reply in {timeout_seconds:g} s") from error
        if len(reply) > MAX_REPLY_BYTES:
            raise RequestError(f"at most {MAX_REPLY_BYTES} bytes expected, got {len(reply)}")
        return reply

    def add_known_peers(self, peers: Iterable[KnownPeer]) -> None:
        """Nothing to do: everybody is connected."""

    async def answer(self, source: str, protocol: str, data: bytes) -> bytes:
        """A request as it arrives from another member. Raises RequestError for an unknown protocol."""
        if protocol not in self._handlers:
            raise RequestError(f"protocols not supported: {protocol}")
        return await self._handlers[protocol](source, data)

    def deliver(self, topic: str, received: Received) -> None:
        """A message as it arrives from the network."""
        if topic in self._subscriptions:
            self._subscriptions[topic].push(received)

    def _require_up(self) -> None:
        if not self._up:
            raise TransportDownError("this transport is not open")
