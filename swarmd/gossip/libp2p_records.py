"""Expiring records in hivemind's DHT, on one p2pd life. Runs in our own event loop.

A record is a value under (key, peer id of its owner). What others may store on this node is
bounded in size and number and passes the caller's check; hivemind by itself would hold anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping

import msgspec

from swarmd.gossip.libp2p_bindings import (
    DHTID,
    DHTNode,
    DHTRecord,
    PeerID,
    RecordValidatorBase,
    get_dht_time,
)
from swarmd.gossip.libp2p_daemon import P2PDaemon
from swarmd.gossip.transport import MAX_RECORD_BYTES, RecordCheck

log = logging.getLogger(__name__)

_KEYS_HELD = 1024
_LONGEST_SUBKEY_BYTES = 128
_LONGEST_TTL_SECONDS = 24 * 3600.0
_RPC_TIMEOUT_SECONDS = 3.0
_STORE_TIMEOUT_SECONDS = 15.0
_PING_TIMEOUT_SECONDS = 5.0


class Records:
    """This node's part of the DHT. Make one with `create`; it ends with its p2pd."""

    def __init__(self, node: DHTNode, peer_id: str) -> None:
        self._node = node
        self._peer_id = peer_id

    @classmethod
    async def create(cls, daemon: P2PDaemon, check: RecordCheck) -> Records:
        """Join the DHT on a running p2pd, knowing nobody yet; see `meet`."""
        peer_id = str(daemon.peer_id)
        node = await DHTNode.create(
            p2p=daemon,
            node_id=DHTID.generate(source=peer_id),
            wait_timeout=_RPC_TIMEOUT_SECONDS,
            # Records are few and renewed; a cache would only serve old ones.
            cache_locally=False,
            cache_on_store=False,
            cache_nearest=0,
            cache_refresh_before_expiry=0,
            record_validator=_Validator(check),
            strict=False,
        )
        node.protocol.storage.maxsize = _KEYS_HELD
        return cls(node, peer_id)

    def unmet(self, peers: Iterable[str]) -> list[str]:
        """Those of `peers` that are not in the routing table."""
        table = self._node.protocol.routing_table.peer_id_to_uid
        return [peer for peer in peers if PeerID.from_base58(peer) not in table]

    async def meet(self, peer_id: str) -> bool:
        """Exchange DHT ids with a connected peer, so that each can store at and ask the other.

        hivemind's own bootstrap would refuse a peer whose clock is 3 s off; records do not need that.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PING_TIMEOUT_SECONDS):
                found = await self._node.protocol.call_ping(PeerID.from_base58(peer_id), validate=False)
                return found is not None
        return False

    async def put(self, key: str, value: bytes, ttl_seconds: float) -> bool:
        """Store our record under `key`; whether anybody (this node counts) took it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STORE_TIMEOUT_SECONDS):
                stored = await self._node.store(
                    key, value, get_dht_time() + ttl_seconds, subkey=self._peer_id
                )
                return bool(stored)
        return False

    async def get(self, key: str, timeout_seconds: float) -> Mapping[str, bytes]:
        """Unexpired records under `key`, by subkey; of each the newest that was found."""
        found = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                found = await self._node.get(key, latest=True)
        if found is None or not isinstance(found.value, dict):
            return {}
        now = get_dht_time()
        return {
            subkey: record.value
            for subkey, record in found.value.items()
            if isinstance(subkey, str) and isinstance(record.value, bytes) and record.expiration_time > now
        }


class _Validator(RecordValidatorBase):  # type: ignore[misc]  # hivemind has no type information
    """Decides what this node stores for others, and what it takes from others' answers."""

    def __init__(self, check: RecordCheck) -> None:
        self._check = check

    def validate(self, record: DHTRecord) -> bool:
        """Whether the record is of our form, bounded, and accepted by the caller's check."""
        if len(record.value) > MAX_RECORD_BYTES + 16 or len(record.subkey) > _LONGEST_SUBKEY_BYTES:
            return False
        if not get_dht_time() < record.expiration_time < get_dht_time() + _LONGEST_TTL_SECONDS:
            return False
        try:
            # Not hivemind's decoder: it would build extension types out of a stranger's bytes.
            subkey = msgspec.msgpack.decode(record.subkey, type=str)
            value = msgspec.msgpack.decode(record.value, type=bytes)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False
        return self._check(subkey, value)
