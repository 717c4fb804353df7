"""What nodes say about themselves in the DHT, and the swarm's manifest there. All of it is sealed by
its author, stands under the author's peer id, and expires.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable

import msgspec
from swarmd_protocol.codec import DecodeLimits, decode
from swarmd_protocol.envelope import Envelope, EnvelopeBody, EnvelopeLimits, Verify, open_envelope
from swarmd_protocol.errors import Reason, Refusal
from swarmd_protocol.messages import Kind, ManifestMessage, NodeRecordMessage
from swarmd_protocol.peer_id import peer_id_of, public_key_of
from swarmd_protocol.topics import manifest_key, node_records_key
from swarmd_protocol.validation import MAX_ADDRESSES, RecordLimits, check_manifest_text, check_node_record

from swarmd.errors import NetworkError
from swarmd.gossip.listen import is_loopback
from swarmd.gossip.peers import PeerBook
from swarmd.gossip.publisher import Author
from swarmd.gossip.transport import MAX_RECORD_BYTES, Transport

log = logging.getLogger(__name__)

_DAY_MS = 24 * 3600 * 1000
_SETTLE_SECONDS = 2.0
_TICK_SECONDS = 0.5
_EARLY_SECONDS = 5.0
"""Between two renewals for changed connections, which change all the time in a large swarm."""
_MANIFEST_SECONDS = 600.0
"""Between two writes of the manifest, which lives three times as long: looking for its holders costs much."""
_MOST_READ = 1024


def record_check(verify: Verify, wall_clock: Callable[[], float] = time.time) -> Callable[[str, bytes], bool]:
    """What a node is willing to hold for others: node records and manifests, of any swarm, sealed by
    the peer under whose id they stand. Anything else is no record.
    """

    def check(subkey: str, value: bytes) -> bool:
        outer = decode(value, tuple[bytes, bytes], DecodeLimits(max_bytes=MAX_RECORD_BYTES, max_depth=1))
        if isinstance(outer, Refusal):
            return False
        body = decode(outer[0], EnvelopeBody)
        if isinstance(body, Refusal) or body.kind not in (Kind.NODE_RECORD, Kind.MANIFEST):
            return False
        if public_key_of(subkey) != body.author:
            return False
        limits = EnvelopeLimits(
            body.swarm_id, Kind(body.kind), None, max_skew_ms=_DAY_MS, max_bytes=MAX_RECORD_BYTES
        )
        return isinstance(open_envelope(value, verify, limits, int(wall_clock() * 1000)), Envelope)

    return check


class NodeRecords:
    """Keeps the own record and the manifest in the DHT, and the peer book up to date from it.

    Args:
        transport: the DHT.
        author: seals.
        describe: the own record as of now; addresses and time are filled in here.
        manifest_toml: the swarm's manifest, kept there for joiners.
        peers: told what peers say about themselves.
        verify: checks a signature.
        interval_seconds: between two writes.
        ttl_seconds: how long a record lives unless renewed.
        max_skew_seconds: records from further in the future are ignored.
    """

    def __init__(
        self,
        transport: Transport,
        author: Author,
        describe: Callable[[], NodeRecordMessage],
        manifest_toml: str,
        peers: PeerBook,
        verify: Verify,
        interval_seconds: float,
        ttl_seconds: float,
        max_skew_seconds: float,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._transport = transport
        self._author = author
        self._describe = describe
        self._manifest_toml = manifest_toml
        self._peers = peers
        self._verify = verify
        self._interval_seconds = interval_seconds
        self._ttl_seconds = ttl_seconds
        self._limits = RecordLimits(
            max_age_ms=int((ttl_seconds + max_skew_seconds) * 1000), max_skew_ms=int(max_skew_seconds * 1000)
        )
        self._wall_clock = wall_clock
        self._manifest_due = 0.0
        self._early_from = 0.0

    async def run(self) -> None:
        """Write and read at every interval, and soon after the connections changed. Never returns."""
        # Those that stand at the start count as changed: their peers do not answer for the DHT yet.
        connected: frozenset[str] = frozenset()
        while True:
            try:
                await self.write()
                await self.read()
            except NetworkError as error:
                log.debug("records: %s", error)
            connected = await self._rest(connected)

    async def write(self) -> None:
        """Renew the own record, and the manifest where that is due. Raises NetworkError."""
        now_ms = int(self._wall_clock() * 1000)
        described = msgspec.structs.replace(
            self._describe(), addresses=_announced(self._transport.state.addresses), created_ms=now_ms
        )
        record = self._author.seal(described, Kind.NODE_RECORD, now_ms)
        await self._transport.put_record(node_records_key(self._author.swarm_id), record, self._ttl_seconds)
        if time.monotonic() < self._manifest_due:
            return
        is_alone = not self._transport.state.connected
        manifest = self._author.seal(ManifestMessage(self._manifest_toml), Kind.MANIFEST, now_ms)
        key, ttl_seconds = manifest_key(self._author.swarm_id), 3 * _MANIFEST_SECONDS
        if await self._transport.put_record(key, manifest, ttl_seconds) and not is_alone:
            self._manifest_due = time.monotonic() + _MANIFEST_SECONDS

    async def read(self) -> None:
        """Read the others' records. Raises NetworkError."""
        found = await self._transport.get_records(node_records_key(self._author.swarm_id))
        for peer_id, value in itertools.islice(found.items(), _MOST_READ):
            if peer_id == self._transport.peer_id:
                continue
            # Each costs a signature check.
            await asyncio.sleep(0)
            record = self._open(peer_id, value)
            if isinstance(record, Reason):
                # Anybody could have put it there: it counts against nobody.
                log.debug("record of %s: %s", peer_id, record)
            else:
                self._peers.note_record(peer_id, record)
        self._transport.add_known_peers(self._peers.known_peers())

    def _open(self, peer_id: str, value: bytes) -> NodeRecordMessage | Reason:
        now_ms = int(self._wall_clock() * 1000)
        limits = EnvelopeLimits(
            self._author.swarm_id,
            Kind.NODE_RECORD,
            self._limits.max_age_ms,
            self._limits.max_skew_ms,
            MAX_RECORD_BYTES,
        )
        envelope = open_envelope(value, self._verify, limits, now_ms)
        if isinstance(envelope, Refusal):
            return envelope.reason
        if peer_id_of(envelope.author) != peer_id:
            return Reason.WRONG_AUTHOR
        record = decode(envelope.payload, NodeRecordMessage)
        if isinstance(record, Refusal):
            return record.reason
        return check_node_record(record, self._limits, now_ms) or record

    async def _rest(self, connected: frozenset[str]) -> frozenset[str]:
        """Until the interval is over, or the connections are others than `connected` and have settled.
        Returns the connections then.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self._interval_seconds
        while (left := until - loop.time()) > 0:
            await asyncio.sleep(min(_TICK_SECONDS, left))
            if frozenset(self._transport.state.connected) != connected and loop.time() >= self._early_from:
                self._early_from = loop.time() + _EARLY_SECONDS
                await asyncio.sleep(min(_SETTLE_SECONDS, self._interval_seconds))
                break
        return frozenset(self._transport.state.connected)


def _announced(addresses: tuple[str, ...]) -> tuple[str, ...]:
    """Addresses of use to others: a loopback address names another machine there."""
    outside = tuple(address for address in addresses if not is_loopback(address))
    return (outside or addresses)[:MAX_ADDRESSES]


async def fetch_manifests(
    transport: Transport, swarm_id: str, verify: Verify, wall_clock: Callable[[], float] = time.time
) -> tuple[str, ...]:
    """TOML texts that claim to be the manifest of a swarm, for a joiner that knows only the id.

    The caller takes one whose digest is the swarm id. Raises NetworkError.
    """
    found = await transport.get_records(manifest_key(swarm_id))
    texts: dict[str, None] = {}
    for value in itertools.islice(found.values(), _MOST_READ):
        await asyncio.sleep(0)
        limits = EnvelopeLimits(swarm_id, Kind.MANIFEST, None, _DAY_MS, MAX_RECORD_BYTES)
        envelope = open_envelope(value, verify, limits, int(wall_clock() * 1000))
        if isinstance(envelope, Refusal):
            continue
        message = decode(envelope.payload, ManifestMessage)
        if isinstance(message, Refusal) or check_manifest_text(message) is not None:
            continue
        texts[message.toml] = None
    return tuple(texts)
