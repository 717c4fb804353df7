"""What stands before hivemind's DHT: requests of strangers and answers of peers that were asked.

hivemind takes either as it comes. Nested extension types end the process, a request may name a million
keys, and a peer may call itself whatever it likes. Here a request is bounded before it is parsed, a peer's
place in the DHT follows from its peer id, and serialised values are read without recursion.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from swarmd_protocol.codec import DecodeLimits, structural_defect
from swarmd_protocol.errors import Reason

from swarmd.gossip.libp2p_bindings import (
    DHTID,
    DictionaryDHTValue,
    MSGPackSerializer,
    P2PHandlerError,
    PeerID,
    ProtobufError,
    dht_pb2,
)
from swarmd.gossip.transport import RequestError

MAX_RPC_BYTES = 1_048_576
"""Of a request: a node that hands over what it holds sends several records at once."""
MAX_KEYS_FOUND = 8
"""Of one search. swarmd looks for one key at a time."""
MAX_KEYS_STORED = 64
"""Of one request to store."""
MAX_NEIGHBOURS = 20
"""That an answer may name for a key: hivemind's bucket size."""
_REFUSED_SECONDS = 15.0
_REFUSALS_REMEMBERED = 1024
_KEY_BYTES = 20
_DICTIONARY = 0x50
"""hivemind's extension type of several records under one key."""
_DICTIONARY_LIMITS = DecodeLimits(max_depth=3, max_items=2048)

_OF_A_DICTIONARY = b""
"""The subkey under which several records stand at once."""

_Message = TypeVar("_Message")

Admits = Callable[[str, int], bool]
"""(peer id, bytes of its request) -> whether it is looked at. Counts for the peer."""
Blames = Callable[[str, Reason], None]
"""(peer id, reason): what the peer sent is no request."""


class Gate:
    """Lets requests of peers through to hivemind's handlers, or raises RequestError.

    Args:
        admits: asked first, knowing only who and how much.
        blames: told of what no honest peer sends.
    """

    def __init__(self, admits: Admits, blames: Blames) -> None:
        self._admits = admits
        self._blames = blames

    def open(self, peer_id: str, data: bytes, message_type: type[_Message]) -> _Message:
        """The request in `data`, which is safe to hand on."""
        if not self._admits(peer_id, len(data)):
            raise RequestError("too many requests, or not listened to")
        if len(data) > MAX_RPC_BYTES:
            raise self._refusal(peer_id, Reason.OVERSIZED)
        try:
            request: _Message = message_type.FromString(data)  # type: ignore[attr-defined]
        except ProtobufError as error:
            raise self._refusal(peer_id, Reason.MALFORMED) from error
        reason = _defect(request, peer_id)
        if reason is not None:
            raise self._refusal(peer_id, reason)
        return request

    def _refusal(self, peer_id: str, reason: Reason) -> RequestError:
        self._blames(peer_id, reason)
        return RequestError(reason.value)


def place(peer_id: str) -> DHTID:
    """Where a peer stands in the DHT: nobody chooses it."""
    return DHTID.generate(source=peer_id)


def _defect(request: Any, peer_id: str) -> Reason | None:
    """What is wrong with a request of this peer."""
    if not _is_placed(request, peer_id):
        return Reason.WRONG_AUTHOR
    if isinstance(request, dht_pb2.PingRequest):
        return None
    keys = request.keys
    if isinstance(request, dht_pb2.FindRequest):
        if len(keys) > MAX_KEYS_FOUND:
            return Reason.OVERSIZED
    else:
        if len(keys) > MAX_KEYS_STORED:
            return Reason.OVERSIZED
        columns = (request.subkeys, request.values, request.expiration_time, request.in_cache)
        if any(len(column) != len(keys) for column in columns):
            return Reason.MALFORMED
        held = zip(request.subkeys, request.values, strict=True)
        if not all(_is_dictionary(value) for subkey, value in held if subkey == _OF_A_DICTIONARY):
            return Reason.MALFORMED
    return None if all(len(key) == _KEY_BYTES for key in keys) else Reason.MALFORMED


def _is_placed(message: Any, peer_id: str) -> bool:
    """Whether the sender gives no place in the DHT, or its own."""
    said: bytes = message.peer.node_id
    return not said or said == place(peer_id).to_bytes()


class Asked:
    """What came of requests to other nodes. Counted, and who refused one is left alone for a while: to ask is
    to connect, and a peer that has closed itself would be dialled for each record.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.outcomes: Counter[str] = Counter()
        """answered, refused, unanswered."""
        self._clock = clock
        self._refused_at: OrderedDict[str, float] = OrderedDict()

    def refused_lately(self, peer_id: str) -> bool:
        """Whether the peer is to be left alone."""
        return self._clock() - self._refused_at.get(peer_id, -_REFUSED_SECONDS) < _REFUSED_SECONDS

    def note(self, peer_id: str, outcome: str) -> None:
        """A request to the peer came to this end."""
        self.outcomes[outcome] += 1
        if outcome == "refused":
            self._refused_at[peer_id] = self._clock()
            self._refused_at.move_to_end(peer_id)
            while len(self._refused_at) > _REFUSALS_REMEMBERED:
                self._refused_at.popitem(last=False)


class CheckedStub:
    """What hivemind calls another node by. An answer that is out of bounds raises RequestError.

    Args:
        stub: hivemind's own.
        peer_id: whom it calls.
        blames: told of answers that no honest peer gives.
        asked: told what came of each request, and asked whether there may be another.
    """

    def __init__(self, stub: Any, peer_id: str, blames: Blames, asked: Asked) -> None:
        self._stub = stub
        self._peer_id = peer_id
        self._blames = blames
        self._asked = asked

    async def rpc_ping(self, request: Any, timeout: float | None = None) -> Any:
        """Whether the peer is there."""
        return await self._ask(self._stub.rpc_ping, request, timeout)

    async def rpc_store(self, request: Any, timeout: float | None = None) -> Any:
        """Ask to hold records."""
        return await self._ask(self._stub.rpc_store, request, timeout)

    async def rpc_find(self, request: Any, timeout: float | None = None) -> Any:
        """Ask for records, and for peers that may have them."""
        response = await self._ask(self._stub.rpc_find, request, timeout)
        if len(response.results) != len(request.keys):
            raise self._refusal(Reason.MALFORMED)
        for result in response.results:
            if len(result.nearest_node_ids) > MAX_NEIGHBOURS:
                raise self._refusal(Reason.OVERSIZED)
            if len(result.nearest_node_ids) != len(result.nearest_peer_ids):
                raise self._refusal(Reason.MALFORMED)
            _leave_out_misplaced(result)
            if result.type == dht_pb2.FOUND_DICTIONARY and not _is_dictionary(result.value):
                raise self._refusal(Reason.MALFORMED)
        return response

    async def _ask(self, call: Callable[..., Awaitable[Any]], request: Any, timeout: float | None) -> Any:
        if self._asked.refused_lately(self._peer_id):
            raise RequestError("refused lately")
        outcome = "unanswered"
        try:
            response = await call(request, timeout=timeout)
            outcome = "answered"
        except P2PHandlerError:
            outcome = "refused"
            raise
        finally:
            self._asked.note(self._peer_id, outcome)
        return self._checked(response)

    def _checked(self, response: Any) -> Any:
        if not _is_placed(response, self._peer_id):
            raise self._refusal(Reason.WRONG_AUTHOR)
        return response

    def _refusal(self, reason: Reason) -> RequestError:
        self._blames(self._peer_id, reason)
        return RequestError(reason.value)


def _leave_out_misplaced(result: Any) -> None:
    """Take out neighbours that stand elsewhere than they have to. Who names them may have been told so."""
    pairs = zip(result.nearest_node_ids, result.nearest_peer_ids, strict=True)
    placed = [(node, peer) for node, peer in pairs if node == place(str(PeerID(peer))).to_bytes()]
    del result.nearest_node_ids[:], result.nearest_peer_ids[:]
    result.nearest_node_ids.extend(node for node, _ in placed)
    result.nearest_peer_ids.extend(peer for _, peer in placed)


class FlatSerializer:
    """Stands in for hivemind's MSGPackSerializer, whose extension types nest: some hundred of them, in a few
    megabytes, take gigabytes or overflow the stack. Here there is one, a dictionary of records, and nothing
    nests in it.
    """

    dumps = staticmethod(MSGPackSerializer.dumps)

    @staticmethod
    def loads(data: bytes) -> object:
        """Bytes, text (a record's owner) or a DictionaryDHTValue. Raises ValueError for anything else."""
        try:
            if data[:1] in _EXTENSION_TAGS:
                return _dictionary(_EXTENSION.decode(data))
            if data[:1] in _TEXT_TAGS:
                return _TEXT.decode(data)
            return _BYTES.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError("not a value of the DHT") from error


def _is_dictionary(data: bytes) -> bool:
    try:
        return isinstance(FlatSerializer.loads(data), DictionaryDHTValue)
    except ValueError:
        return False


def _dictionary(packed: msgspec.msgpack.Ext) -> DictionaryDHTValue:
    data = bytes(packed.data)
    if packed.code != _DICTIONARY or structural_defect(data, _DICTIONARY_LIMITS) is not None:
        raise ValueError("not a dictionary of records")
    _, _, items = _RECORDS.decode(data)
    found = DictionaryDHTValue()
    with found.freeze():
        for subkey, value, expiration_time in items:
            found.store(subkey, value, expiration_time)
    return found


_EXTENSION_TAGS = frozenset(bytes([tag]) for tag in (*range(0xC7, 0xCA), *range(0xD4, 0xD9)))
_EXTENSION = msgspec.msgpack.Decoder(msgspec.msgpack.Ext)
_TEXT_TAGS = frozenset(bytes([tag]) for tag in (*range(0xA0, 0xC0), *range(0xD9, 0xDC)))
_TEXT = msgspec.msgpack.Decoder(str)
_BYTES = msgspec.msgpack.Decoder(bytes)
_RECORDS = msgspec.msgpack.Decoder(tuple[float, float, list[tuple[str, bytes, float]]])
"""maxsize, latest expiration, and each record's subkey, value and expiration, seconds since the epoch."""
