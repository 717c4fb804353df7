import random
import time

from swarmd.gossip.libp2p_bindings import DHTID, DictionaryDHTValue
from swarmd.gossip.libp2p_dht import MAX_KEYS_STORED
from swarmd.gossip.libp2p_handover import MOST_BYTES, handed_over

EXPIRES = time.time() + 1_000


def held(records: dict[str, bytes]) -> DictionaryDHTValue:
    found = DictionaryDHTValue()
    for owner, value in records.items():
        found.store(owner, value, EXPIRES)
    return found


def requests_of(keys: dict[DHTID, dict[str, bytes]], *known: str) -> list[dict[DHTID, dict[str, bytes]]]:
    found = handed_over(keys, map(held, keys.values()), known.__contains__, random.Random(0))
    return [
        {key: {owner: record.value for owner, record in records.items()} for key, records in request.items()}
        for request in found
    ]


def key(number: int) -> DHTID:
    return DHTID.generate(source=number)


def test_a_few_records_are_handed_over_in_one_request() -> None:
    keys = {key(0): {"a": b"1", "b": b"2"}, key(1): {"a": b"3"}}
    assert requests_of(keys) == [keys]
    assert requests_of({}) == []


def test_many_keys_are_spread_over_requests_that_a_receiver_takes() -> None:
    keys = {key(number): {"a": b"1", "b": b"2"} for number in range(200)}
    requests = requests_of(keys)
    assert all(len(request) <= MAX_KEYS_STORED for request in requests)
    arrived: dict[DHTID, dict[str, bytes]] = {}
    for request in requests:
        for each, records in request.items():
            arrived.setdefault(each, {}).update(records)
    assert arrived == keys


def test_of_too_many_bytes_those_of_known_peers_come_first() -> None:
    records = {f"owner {number}": bytes(10_000) for number in range(100)}
    requests = requests_of({key(0): records}, "owner 77", "owner 99")
    sizes = [sum(map(len, request[key(0)].values())) for request in requests]
    assert MOST_BYTES * 0.9 < sum(sizes) <= MOST_BYTES
    assert max(sizes) <= MOST_BYTES / 2
    assert {"owner 77", "owner 99"} <= requests[0][key(0)].keys()
    # Each of the others has its chance.
    assert {owner for request in requests for owner in request[key(0)]} != set(list(records)[:25])
