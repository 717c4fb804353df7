"""Expiring records in hivemind's DHT, on one p2pd life. Runs in our own event loop.

A record is a value under (key, peer id of its owner). What others may store on this node is
bounded in size and number and passes the caller's check; hivemind by itself would hold anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from swarmd.gossip.libp2p_bindings import (
    DHTID,
    DHTNode,
    DHTRecord,
    DictionaryDHTValue,
    PeerID,
    RecordValidatorBase,
    get_dht_time,
)
from swarmd.gossip.libp2p_daemon import P2PDaemon
from swarmd.gossip.libp2p_dht import Asked, CheckedStub, FlatSerializer, Gate, place
from swarmd.gossip.libp2p_handover import handed_over
from swarmd.gossip.record_store import RecordStore, StoreLimits
from swarmd.gossip.transport import MAX_RECORD_BYTES, RecordCheck, Standing

log = logging.getLogger(__name__)

_LONGEST_SUBKEY_BYTES = 128
MAX_RECORD_TTL_SECONDS = 3600.0
_CHECKS_PER_SECOND = 256.0
_CHECKS_AT_ONCE = 512.0
_CHECKS_REMEMBERED = 4096
_REPLACEMENTS_PER_BUCKET = 20
_FAILURES_REMEMBERED = 4096
_RPC_TIMEOUT_SECONDS = 3.0
_STORE_TIMEOUT_SECONDS = 15.0
_PING_TIMEOUT_SECONDS = 5.0

_CallStore = Callable[..., Awaitable[list[bool] | None]]


class Records:
    """This node's part of the DHT. Make one with `create`; it ends with its p2pd."""

    def __init__(self, node: DHTNode, peer_id: str) -> None:
        self._node = node
        self._peer_id = peer_id

    @classmethod
    async def create(cls, daemon: P2PDaemon, check: RecordCheck, standing: Standing, asked: Asked) -> Records:
        """Join the DHT on a running p2pd, knowing nobody yet; see `meet`.

        Records of peers in good standing are held before those of strangers. `asked` is told of
        requests to other nodes.
        """
        peer_id = str(daemon.peer_id)
        daemon.gate = Gate(standing.admits, standing.blame)
        node = await DHTNode.create(
            p2p=daemon,
            node_id=place(peer_id),
            wait_timeout=_RPC_TIMEOUT_SECONDS,
            # Records are few and renewed; a cache would only serve old ones.
            cache_locally=False,
            cache_on_store=False,
            cache_nearest=0,
            cache_refresh_before_expiry=0,
            record_validator=_Validator(check),
            strict=False,
        )
        # Others may ask a node to store in its cache as well: it is the same store, with the same bounds.
        limits = StoreLimits()
        store = RecordStore(lambda peer: peer == peer_id or standing.is_known(peer), limits)
        protocol = node.protocol
        protocol.storage = protocol.cache = store
        protocol.serializer = FlatSerializer
        validator, stub = protocol.record_validator, protocol.get_stub
        protocol._validate_dictionary = lambda key, found: (
            len(found.data) <= limits.records_per_key and _leave_out_invalid(key, found, validator)
        )
        protocol.get_stub = lambda peer: CheckedStub(stub(peer), str(peer), standing.blame, asked)
        protocol.call_store = _in_requests(protocol.call_store, standing.is_known)
        return cls(node, peer_id)

    def unmet(self, peers: Iterable[str]) -> list[str]:
        """Those of `peers` that are not in the routing table."""
        table = self._node.protocol.routing_table.peer_id_to_uid
        return [peer for peer in peers if PeerID.from_base58(peer) not in table]

    def tidy(self) -> None:
        """Forget what hivemind would keep of every key that ever asked or did not answer."""
        table, blacklist = self._node.protocol.routing_table, self._node.blacklist
        for bucket in table.buckets:
            surplus = len(bucket.replacement_nodes) - _REPLACEMENTS_PER_BUCKET
            for node_id in list(itertools.islice(bucket.replacement_nodes, max(0, surplus))):
                del table[node_id]
            bucket.nodes_requested_for_ping.intersection_update(bucket.nodes_to_peer_id)
        if len(blacklist.ban_counter) > _FAILURES_REMEMBERED:
            blacklist.clear()

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


def _leave_out_invalid(key: bytes, found: DictionaryDHTValue, validator: RecordValidatorBase) -> bool:
    """Take out of what a peer sent the records that are not to be held. hivemind would refuse all for one."""
    with found.freeze():
        for owner, (value, expiration_time) in list(found.items()):
            subkey = FlatSerializer.dumps(owner)
            if not validator.validate(DHTRecord(key, subkey, value, expiration_time)):
                del found[owner]
    return True


def _in_requests(call_store: _CallStore, is_known: Callable[[str], bool]) -> _CallStore:
    """Hivemind's `call_store`, that hands over in several requests what it would hand over in one."""
    rng = random.Random()

    async def bounded(
        peer: PeerID,
        keys: Sequence[DHTID],
        values: Sequence[Any],
        expiration_time: Any,
        subkeys: Any = None,
        in_cache: Any = None,
    ) -> list[bool] | None:
        if subkeys is not None:
            # Not handed over: a record of this node.
            return await call_store(peer, keys, values, expiration_time, subkeys, in_cache)
        answers: list[bool] = []
        for request in handed_over(keys, values, is_known, rng):
            latest = [records.latest_expiration_time for records in request.values()]
            answer = await call_store(peer, list(request), list(request.values()), latest, None, in_cache)
            if answer is None:
                return None
            answers += answer
        return answers

    return bounded


class _Validator(RecordValidatorBase):  # type: ignore[misc]  # hivemind has no type information
    """Decides what this node stores for others, and what it takes from others' answers.

    A check costs a signature. The records that passed lately are remembered, and of unknown ones only
    so many are checked in a second: more are refused unseen, so that a flood cannot hold the loop.
    """

    def __init__(self, check: RecordCheck, clock: Callable[[], float] = time.monotonic) -> None:
        self._check = check
        self._clock = clock
        self._passed: OrderedDict[bytes, None] = OrderedDict()
        self._checks_left = _CHECKS_AT_ONCE
        self._checks_at = clock()

    def validate(self, record: DHTRecord) -> bool:
        """Whether the record is of our form, bounded, and accepted by the caller's check."""
        if len(record.value) > MAX_RECORD_BYTES + 16 or len(record.subkey) > _LONGEST_SUBKEY_BYTES:
            return False
        if not get_dht_time() < record.expiration_time < get_dht_time() + MAX_RECORD_TTL_SECONDS:
            return False
        digest = hashlib.sha256(len(record.subkey).to_bytes(2, "big") + record.subkey + record.value).digest()
        if digest in self._passed:
            self._passed.move_to_end(digest)
            return True
        if not self._may_check():
            return False
        try:
            # Not hivemind's decoder: it would build extension types out of a stranger's bytes.
            subkey = msgspec.msgpack.decode(record.subkey, type=str)
            value = msgspec.msgpack.decode(record.value, type=bytes)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False
        if not self._check(subkey, value):
            return False
        self._passed[digest] = None
        while len(self._passed) > _CHECKS_REMEMBERED:
            self._passed.popitem(last=False)
        return True

    def _may_check(self) -> bool:
        now = self._clock()
        filled = self._checks_left + (now - self._checks_at) * _CHECKS_PER_SECOND
        self._checks_left, self._checks_at = min(_CHECKS_AT_ONCE, filled), now
        if self._checks_left < 1.0:
            return False
        self._checks_left -= 1.0
        return True
