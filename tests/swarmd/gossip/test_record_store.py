"""What a node holds of the DHT for others: bounded, and a crowd of strangers displaces itself."""

import random

from swarmd.gossip.libp2p_bindings import DHTID
from swarmd.gossip.record_store import RecordStore, StoreLimits

T = 4_000_000_000.0
"""Now. Ahead of the clock that hivemind's own types look at."""
KEY, OTHER = DHTID.generate(source="nodes"), DHTID.generate(source="manifest")
LIMITS = StoreLimits(records=20, records_per_key=10, records_per_owner=2, bytes=2_000, bytes_per_owner=300)


def make_store(*known: str) -> RecordStore:
    return RecordStore(known.__contains__, LIMITS, lambda: T)


def owners(store: RecordStore, key: DHTID = KEY) -> set[str]:
    found = store.get(key)
    return set() if found is None else {owner for owner, _ in found.value.items()}


def test_a_record_is_held_until_it_expires_and_the_newest_wins() -> None:
    now = [T]
    store = RecordStore(lambda peer: False, LIMITS, lambda: now[0])
    assert store.store_subkey(KEY, "a", b"old", T + 10)
    assert store.store_subkey(KEY, "a", b"newer", T + 20)
    assert store.store_subkey(KEY, "a", b"older", T + 15)
    assert not store.store_subkey(KEY, "b", b"expired", T - 1)
    found = store.get(KEY)
    assert found is not None
    assert found.expiration_time == T + 20
    assert found.value.data["a"].value == b"newer"
    assert KEY in store
    now[0] = T + 21
    assert store.get(KEY) is None
    assert (len(store), store.size_bytes) == (0, 0)


def test_a_value_without_an_owner_is_refused() -> None:
    store = make_store()
    assert not store.store(KEY, b"value", T + 1000)
    assert len(store) == 0


def test_an_owner_has_a_few_records_and_bytes_whatever_the_keys() -> None:
    store = make_store()
    keys = [DHTID.generate(source=str(number)) for number in range(5)]
    assert [store.store_subkey(key, "a", b"x", T + 1000) for key in keys] == [True, True, False, False, False]
    assert store.store_subkey(keys[0], "a", bytes(250), T + 1001)
    assert not store.store_subkey(keys[1], "a", bytes(100), T + 1001)
    assert store.size_bytes == 251


def test_what_stands_under_one_key_can_be_sent_in_one_answer() -> None:
    limits = StoreLimits(bytes_per_key=1_000)
    store = RecordStore({"friend"}.__contains__, limits, lambda: T)
    assert store.store_subkey(KEY, "friend", bytes(400), T + 1000)
    for number in range(20):
        assert store.store_subkey(KEY, f"key {number}", bytes(300), T + 1000)
        assert store.size_bytes <= 1_000
    assert len(owners(store)) == 3
    assert "friend" in owners(store)
    assert store.store_subkey(OTHER, "key 0", bytes(300), T + 1000)


def test_a_crowd_of_strangers_displaces_itself_and_nobody_who_is_known() -> None:
    store = make_store("friend", "other friend")
    assert store.store_subkey(KEY, "friend", b"x", T + 500)
    for number in range(5_000):
        store.store_subkey(KEY, f"key {number}", b"x", T + 1000)
        store.store_subkey(DHTID.generate(source=str(number)), f"key {number}", bytes(250), T + 1000)
        assert len(store) <= LIMITS.records
        assert store.size_bytes <= LIMITS.bytes
        assert len(owners(store)) <= LIMITS.records_per_key
    assert "friend" in owners(store)
    assert store.store_subkey(KEY, "other friend", b"x", T + 500)


def test_where_only_known_peers_are_held_a_stranger_is_refused() -> None:
    friends = [f"friend {number}" for number in range(10)]
    store = make_store(*friends)
    assert all(store.store_subkey(KEY, friend, b"x", T + 1000) for friend in friends)
    assert not store.store_subkey(KEY, "stranger", b"x", T + 2000)
    assert owners(store) == set(friends)
    assert store.store_subkey(OTHER, "stranger", b"x", T + 2000)


def test_writing_the_same_record_again_and_again_leaves_no_trace() -> None:
    store = make_store()
    rng = random.Random(0)
    for number in range(10_000):
        store.store_subkey(KEY, "a", rng.randbytes(8), T + 1000 + number)
    assert (len(store), store.size_bytes) == (1, 8)
    assert [key for key, _ in store.items()] == [KEY]
