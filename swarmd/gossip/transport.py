"""Transport: how bytes get to peers and come from them. The interface that the rest of the room
uses, and the nouns both implementations share (libp2p.py on p2pd, memory.py in one process).

It promises delivery to nobody. It promises that nothing it holds grows without bound, that a
message too large to arrive is refused instead of lost, and that an unreachable peer delays no
other peer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Protocol, Self

import msgspec
from swarmd_protocol.errors import Reason

from swarmd.errors import NetworkError
from swarmd.gossip.subscription import Subscription

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


class BootstrapStatus(msgspec.Struct, frozen=True):
    """How one join address is doing."""

    address: str
    reachable: bool
    last_error: str | None
    """One line; None while connected and before the first try ended."""
    since: float
    """Monotonic seconds since when `reachable` has had its value."""
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
    dht_requests: Mapping[str, int] = {}
    """Requests to other nodes' part of the DHT since the start: answered, refused, unanswered."""


RequestHandler = Callable[[str, bytes], Awaitable[bytes]]
"""(peer id, request) -> reply. When it raises NetworkError the peer gets no reply."""

RecordCheck = Callable[[str, bytes], bool]
"""(subkey, value) -> whether this node is willing to hold the record for others."""


class Standing(msgspec.Struct, frozen=True):
    """What the node thinks of a peer, as far as connections are concerned."""

    is_closed: Callable[[str], bool]
    """No connection is wanted: the peer is not dialled and not answered, and a connection that it opens
    is closed within a second or two."""
    is_known: Callable[[str], bool]
    """In good standing: its records are held before those of strangers."""
    admits: Callable[[str, int], bool]
    """(peer id, bytes) -> whether a request of the peer to the DHT is looked at. Counts for the peer."""
    blame: Callable[[str, Reason], None]
    """The peer asked or answered what no honest one does."""


EQUAL_STANDING = Standing(
    is_closed=lambda peer_id: False,
    is_known=lambda peer_id: False,
    admits=lambda peer_id, size_bytes: True,
    blame=lambda peer_id, reason: None,
)


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

    def subscribe(self, subscription: Subscription) -> Subscription:
        """Receive its topic from now on, also across restarts of p2pd. Once per topic."""

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
