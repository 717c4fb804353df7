"""Transport: how bytes get to peers and come from them. The interface that the rest of the room
uses, and the nouns both implementations share (libp2p.py on p2pd, memory.py in one process).

It promises delivery to nobody. It promises that nothing it holds grows without bound, that a
message too large to arrive is refused instead of lost, and that an unreachable peer delays no
other peer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Protocol, Self

import msgspec

from swarmd.errors import NetworkError

MAX_MESSAGE_BYTES = 1_000_000
"""Largest published message. p2pd silently drops messages whose frame passes 1 MiB."""
MAX_REQUEST_BYTES = 64 * 1024
"""Largest request on a stream."""
MAX_REPLY_BYTES = 16 * 1024 * 1024
"""Largest reply on a stream."""
MAX_RECORD_BYTES = 64 * 1024
"""Largest value of a record."""


class MessageTooLargeError(NetworkError):
    """A message or record above the limit, which would not arrive. Nothing was sent."""


class TransportDownError(NetworkError):
    """The network is not up at the moment (p2pd is being restarted). Nothing was sent."""


class RequestError(NetworkError):
    """A request to a peer failed: unreachable, too slow, protocol unknown to it, or a broken reply."""


class Received(msgspec.Struct, frozen=True):
    """One published message as it arrived."""

    source: str
    """Peer id of the node that published it, as its transport signature shows; not of the relayer."""
    data: bytes


class BootstrapStatus(msgspec.Struct, frozen=True):
    """How one join address is doing."""

    address: str
    reachable: bool
    last_error: str | None
    """One line; None while connected and before the first try ended."""
    since: float
    """Wall clock (seconds) since when `reachable` has had its value."""
    attempts: int
    """Dials since the last connection."""


class KnownPeer(msgspec.Struct, frozen=True):
    """A peer worth dialling when connections are few: from an earlier run or from its record."""

    peer_id: str
    addresses: tuple[str, ...]


class TransportState(msgspec.Struct, frozen=True):
    """A snapshot for people; refreshed about once a second."""

    up: bool
    addresses: tuple[str, ...]
    """Own multiaddrs, each ending in /p2p/PEERID."""
    connected: Mapping[str, tuple[str, ...]]
    """Connected peers and the multiaddrs of the connections."""
    bootstrap: tuple[BootstrapStatus, ...]
    restarts: int
    """How often p2pd died and was started again."""
    notes: tuple[str, ...]
    """What a person should know, one line each: another port than asked for, only loopback announced."""


RequestHandler = Callable[[str, bytes], Awaitable[bytes]]
"""(peer id, request) -> reply. When it raises NetworkError the peer gets no reply."""

RecordCheck = Callable[[str, bytes], bool]
"""(subkey, value) -> whether this node is willing to hold the record for others."""


class Subscription:
    """The messages of one topic, in the order they arrived, without our own.

    Holds at most `capacity` messages; when full the oldest is dropped and counted in `dropped`.
    Several consumers may iterate, each message goes to one. Iteration ends when the transport closes.
    """

    def __init__(self, topic: str, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self.topic = topic
        self.dropped = 0
        self._capacity = capacity
        self._waiting: deque[Received] = deque()
        self._wake = asyncio.Event()
        self._closed = False

    def push(self, received: Received) -> None:
        """Called by the transport for each message, and by catch-up."""
        if self._closed:
            return
        if len(self._waiting) >= self._capacity:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append(received)
        self._wake.set()

    def close(self) -> None:
        """End the iteration after the messages that already wait."""
        self._closed = True
        self._wake.set()

    def __len__(self) -> int:
        return len(self._waiting)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Received:
        while not self._waiting:
            if self._closed:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        return self._waiting.popleft()


class Transport(Protocol):
    """Gossip topics, expiring records and request streams among peers named by their peer ids."""

    @property
    def peer_id(self) -> str:
        """This node's peer id."""

    @property
    def state(self) -> TransportState:
        """Addresses, connections and join addresses, as last seen."""

    async def __aenter__(self) -> Self:
        """Come up. Raises NetworkError in one line when the network cannot be opened at all.
        Unreachable peers are no reason: they are dialled in the background for as long as it is up.
        """

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close everything; subscriptions end."""

    async def publish(self, topic: str, data: bytes) -> None:
        """Send to all subscribers of the topic that can be reached. Own subscriptions do not get it.

        Raises MessageTooLargeError above MAX_MESSAGE_BYTES, TransportDownError while down.
        """

    def subscribe(self, topic: str, capacity: int) -> Subscription:
        """Receive a topic from now on, also across restarts of p2pd. Once per topic."""

    async def put_record(self, key: str, value: bytes, ttl_seconds: float) -> bool:
        """Store `value` under (key, own peer id), replacing our earlier one. It expires unless renewed.

        False when no node took it. Raises MessageTooLargeError above MAX_RECORD_BYTES,
        TransportDownError while down.
        """

    async def get_records(self, key: str, timeout_seconds: float = 10.0) -> Mapping[str, bytes]:
        """All unexpired records under `key`, by subkey. They are claims: the caller checks signatures.
        Empty when nothing was found in time. Raises TransportDownError while down.
        """

    def serve(self, protocol: str, handler: RequestHandler) -> None:
        """Answer requests of a protocol from now on. Once per protocol."""

    async def request(self, peer_id: str, protocol: str, data: bytes, timeout_seconds: float) -> bytes:
        """Ask one peer. Raises RequestError when no proper reply came, TransportDownError while down."""

    def add_known_peers(self, peers: Iterable[KnownPeer]) -> None:
        """Peers to dial when there are few connections. Newer addresses replace older ones."""


def check_message_size(data: bytes) -> None:
    """Raises MessageTooLargeError when a published message would not arrive."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise MessageTooLargeError(
            f"a message may have {MAX_MESSAGE_BYTES} bytes at most to arrive, got {len(data)}"
        )


def check_record_size(value: bytes) -> None:
    """Raises MessageTooLargeError when a record is above what peers store."""
    if len(value) > MAX_RECORD_BYTES:
        raise MessageTooLargeError(f"a record may have {MAX_RECORD_BYTES} bytes at most, got {len(value)}")
