"""What strangers ask hivemind's DHT, and what they answer. On real p2pd: tests/hostile/test_dht.py."""

import time
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from swarmd_protocol.errors import Reason

from swarmd.gossip.libp2p_bindings import (
    DictionaryDHTValue,
    MSGPackSerializer,
    P2PHandlerError,
    PeerID,
    dht_pb2,
)
from swarmd.gossip.libp2p_dht import Asked, CheckedStub, FlatSerializer, Gate, place
from swarmd.gossip.transport import RequestError
from swarmd.identity import Identity

PEER, OTHER = (Identity.generate().peer_id for _ in range(2))
SELF = dht_pb2.NodeInfo(node_id=place(PEER).to_bytes())
FOREIGN = dht_pb2.NodeInfo(node_id=place(OTHER).to_bytes())
KEY = bytes(20)


class Setting:
    def __init__(self, admits: bool = True) -> None:
        self.asked: list[tuple[str, int]] = []
        self.blamed: list[tuple[str, Reason]] = []
        self.now = 0.0
        self.asked_of_others = Asked(lambda: self.now)

        def note(peer_id: str, size_bytes: int) -> bool:
            self.asked.append((peer_id, size_bytes))
            return admits

        self.gate = Gate(note, self.blame)

    def blame(self, peer_id: str, reason: Reason) -> None:
        self.blamed.append((peer_id, reason))

    def stub(self, answers: Any) -> CheckedStub:
        return CheckedStub(answers, PEER, self.blame, self.asked_of_others)


def store(count: int, peer: Any = SELF, **others: Any) -> Any:
    columns = {
        "keys": [KEY] * count,
        "subkeys": [b"s"] * count,
        "values": [b"v"] * count,
        "expiration_time": [1.0] * count,
        "in_cache": [False] * count,
    }
    return dht_pb2.StoreRequest(peer=peer, **{**columns, **others})


@pytest.mark.parametrize(
    "request_",
    [
        dht_pb2.PingRequest(peer=SELF, validate=True),
        dht_pb2.PingRequest(),
        dht_pb2.FindRequest(keys=[KEY] * 8, peer=SELF),
        store(64),
    ],
)
def test_what_an_honest_node_asks_comes_through_as_it_is(request_: Any) -> None:
    setting = Setting()
    data = request_.SerializeToString()
    assert setting.gate.open(PEER, data, type(request_)) == request_
    assert setting.asked == [(PEER, len(data))]
    assert setting.blamed == []


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (dht_pb2.PingRequest(peer=FOREIGN), Reason.WRONG_AUTHOR),
        (dht_pb2.FindRequest(keys=[KEY], peer=FOREIGN), Reason.WRONG_AUTHOR),
        (store(1, FOREIGN), Reason.WRONG_AUTHOR),
        (dht_pb2.FindRequest(keys=[KEY] * 9, peer=SELF), Reason.OVERSIZED),
        (dht_pb2.FindRequest(keys=[b""], peer=SELF), Reason.MALFORMED),
        (dht_pb2.FindRequest(keys=[bytes(21)], peer=SELF), Reason.MALFORMED),
        (store(65), Reason.OVERSIZED),
        (store(2, subkeys=[b"s"]), Reason.MALFORMED),
        (store(1, keys=[b""]), Reason.MALFORMED),
        (store(1, values=[bytes(1_048_576)]), Reason.OVERSIZED),
        (store(1, subkeys=[b""]), Reason.MALFORMED),
    ],
    ids=lambda each: each.value if isinstance(each, Reason) else type(each).__name__,
)
def test_what_no_honest_node_asks_is_refused_and_counted_for_the_peer(request_: Any, reason: Reason) -> None:
    setting = Setting()
    with pytest.raises(RequestError):
        setting.gate.open(PEER, request_.SerializeToString(), type(request_))
    assert setting.blamed == [(PEER, reason)]


def test_a_request_that_is_not_admitted_is_not_parsed() -> None:
    setting = Setting(admits=False)
    with pytest.raises(RequestError):
        setting.gate.open(PEER, b"\xff", dht_pb2.PingRequest)
    assert setting.blamed == []


@given(st.binary(max_size=200), st.sampled_from(("PingRequest", "FindRequest", "StoreRequest")))
def test_any_request_is_let_through_or_refused(data: bytes, name: str) -> None:
    setting = Setting()
    try:
        setting.gate.open(PEER, data, getattr(dht_pb2, name))
    except RequestError:
        assert setting.blamed


class Answer:
    def __init__(self, response: Any) -> None:
        self.rpc_ping = self.rpc_store = self.rpc_find = self._answer
        self._response = response

    async def _answer(self, request: Any, timeout: float | None = None) -> Any:
        if isinstance(self._response, Exception):
            raise self._response
        return self._response


def found(*peers: str, claimed: Callable[[str], bytes] = lambda peer: place(peer).to_bytes()) -> Any:
    result = dht_pb2.FindResult(
        nearest_node_ids=list(map(claimed, peers)),
        nearest_peer_ids=[PeerID.from_base58(peer).to_bytes() for peer in peers],
    )
    return dht_pb2.FindResponse(results=[result], peer=SELF)


async def test_answers_of_honest_nodes_are_handed_on() -> None:
    setting = Setting()
    for response in (found(), found(OTHER, PEER)):
        stub = setting.stub(Answer(response))
        assert await stub.rpc_find(dht_pb2.FindRequest(keys=[KEY])) is response
    pong = dht_pb2.PingResponse(peer=SELF)
    assert await setting.stub(Answer(pong)).rpc_ping(dht_pb2.PingRequest()) is pong
    assert setting.blamed == []


async def test_requests_are_counted_and_who_refuses_one_is_left_alone_for_a_while() -> None:
    setting = Setting()
    pong, gone = setting.stub(Answer(dht_pb2.PingResponse(peer=SELF))), setting.stub(Answer(TimeoutError()))
    with pytest.raises(TimeoutError):
        await gone.rpc_store(dht_pb2.StoreRequest(keys=[KEY]))
    await pong.rpc_ping(dht_pb2.PingRequest())
    with pytest.raises(P2PHandlerError):
        await setting.stub(Answer(P2PHandlerError("full"))).rpc_find(dht_pb2.FindRequest(keys=[KEY]))
    with pytest.raises(RequestError, match="lately"):
        await pong.rpc_ping(dht_pb2.PingRequest())
    assert setting.asked_of_others.outcomes == {"refused": 1, "unanswered": 1, "answered": 1}
    setting.now += 20
    await pong.rpc_ping(dht_pb2.PingRequest())
    assert setting.asked_of_others.outcomes["answered"] == 2
    assert setting.blamed == []


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (
            dht_pb2.FindResponse(
                results=[dht_pb2.FindResult(type=dht_pb2.FOUND_DICTIONARY, value=b"x")], peer=SELF
            ),
            Reason.MALFORMED,
        ),
        (found(*[OTHER] * 21), Reason.OVERSIZED),
        (dht_pb2.FindResponse(peer=SELF), Reason.MALFORMED),
        (dht_pb2.FindResponse(results=[dht_pb2.FindResult()], peer=FOREIGN), Reason.WRONG_AUTHOR),
        (
            dht_pb2.FindResponse(results=[dht_pb2.FindResult(nearest_node_ids=[KEY])], peer=SELF),
            Reason.MALFORMED,
        ),
    ],
)
async def test_answers_that_no_honest_node_gives_are_refused_and_counted(
    response: Any, reason: Reason
) -> None:
    setting = Setting()
    with pytest.raises(RequestError):
        await setting.stub(Answer(response)).rpc_find(dht_pb2.FindRequest(keys=[KEY]))
    assert setting.blamed == [(PEER, reason)]


async def test_neighbours_that_stand_elsewhere_than_they_have_to_are_left_out() -> None:
    setting = Setting()
    response = found(PEER, OTHER)
    response.results[0].nearest_node_ids[0] = KEY
    stub = setting.stub(Answer(response))
    (result,) = (await stub.rpc_find(dht_pb2.FindRequest(keys=[KEY]))).results
    assert list(result.nearest_node_ids) == [place(OTHER).to_bytes()]
    assert list(result.nearest_peer_ids) == [PeerID.from_base58(OTHER).to_bytes()]
    assert setting.blamed == []


def test_records_of_an_honest_node_are_read() -> None:
    records = DictionaryDHTValue()
    for number in range(256):
        records.store(f"owner {number}", b"value", time.time() + 60)
    read = FlatSerializer.loads(FlatSerializer.dumps(records))
    assert isinstance(read, DictionaryDHTValue)
    assert read.data == records.data
    assert FlatSerializer.loads(FlatSerializer.dumps(b"value")) == b"value"
    assert FlatSerializer.loads(FlatSerializer.dumps("owner")) == "owner"


@pytest.mark.parametrize("code", [0x40, 0x50])
def test_extension_types_in_each_other_are_no_value(code: int) -> None:
    data = msgpack.packb(bytes(1_000))
    for _ in range(300):
        data = msgpack.packb([0.0, 0.0, msgpack.ExtType(code, data)])
    with pytest.raises(ValueError, match="not a"):
        FlatSerializer.loads(msgpack.packb(msgpack.ExtType(code, data)))


def test_a_dictionary_with_too_many_values_is_none() -> None:
    items = [["owner", b"", 0.0]] * 600
    with pytest.raises(ValueError, match="dictionary"):
        FlatSerializer.loads(msgpack.packb(msgpack.ExtType(0x50, msgpack.packb([0.0, 0.0, items]))))


@given(st.binary(max_size=100))
def test_any_bytes_are_a_value_or_a_value_error(data: bytes) -> None:
    for each in (data, msgpack.packb(msgpack.ExtType(0x50, data)), MSGPackSerializer.dumps(data)):
        try:
            value = FlatSerializer.loads(each)
        except ValueError:
            continue
        assert isinstance(value, bytes | str | DictionaryDHTValue)
