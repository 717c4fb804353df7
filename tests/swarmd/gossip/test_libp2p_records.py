"""What the records of the DHT promise beyond test_libp2p.py: clocks may differ, a record that is no good
hides no other, and what a node holds gets to those it meets.
"""

import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from swarmd_protocol.errors import Reason

from swarmd.gossip import libp2p_records
from swarmd.gossip.libp2p import Libp2pSettings, Libp2pTransport
from swarmd.gossip.libp2p_bindings import DHTID, DHTRecord, DictionaryDHTValue, PeerID
from swarmd.gossip.transport import EQUAL_STANDING
from swarmd.identity import Identity

# A node whose DHT sees a clock that is 20 s ahead; hivemind's own limit is 3 s.
SKEWED_NODE = """
import asyncio, sys, time
from pathlib import Path
from swarmd.gossip import libp2p_bindings, libp2p_records
from swarmd.gossip.libp2p import Libp2pSettings, Libp2pTransport
from swarmd.gossip.libp2p_bindings import DHTRecord, DictionaryDHTValue
from swarmd.identity import Identity

for name, module in list(sys.modules.items()):
    if name.startswith("hivemind.") or module is libp2p_records:
        if hasattr(module, "get_dht_time"):
            module.get_dht_time = lambda: time.time() + 20

async def main():
    home, address = Path(sys.argv[1]), sys.argv[2]
    identity = Identity.create(home / "key")
    settings = Libp2pSettings(home / "key", identity.peer_id, home, ("/ip4/127.0.0.1/tcp/0",), (address,))
    async with Libp2pTransport(settings, lambda subkey, value: True) as transport:
        while True:
            await transport.put_record("key", b"ahead", 60)
            found = await transport.get_records("key")
            if len(found) == 2:
                print(*sorted(value.decode() for value in found.values()), flush=True)
            await asyncio.sleep(0.2)

asyncio.run(main())
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    # Unix socket paths are short; pytest's own folders are not.
    path = Path(tempfile.mkdtemp(prefix="sw-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


async def test_nodes_whose_clocks_differ_read_each_others_records(folder: Path) -> None:
    identity = Identity.create(folder / "key")
    settings = Libp2pSettings(folder / "key", identity.peer_id, folder, ("/ip4/127.0.0.1/tcp/0",))
    (folder / "skewed").mkdir()
    async with Libp2pTransport(settings, lambda subkey, value: True) as transport:
        skewed = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            SKEWED_NODE,
            folder / "skewed",
            transport.state.addresses[0],
            stdout=asyncio.subprocess.PIPE,
        )
        assert skewed.stdout is not None
        try:
            async with asyncio.timeout(30):
                while len(found := await transport.get_records("key")) < 2:
                    await transport.put_record("key", b"on time", 60)
                    await asyncio.sleep(0.2)
                assert sorted(found.values()) == [b"ahead", b"on time"]
                assert await skewed.stdout.readline() == b"ahead on time\n"
        finally:
            skewed.kill()
            await skewed.wait()


def record(number: int) -> DHTRecord:
    return DHTRecord(
        b"key",
        msgspec.msgpack.encode("owner"),
        msgspec.msgpack.encode(number.to_bytes(4, "big")),
        time.time() + 60,
    )


def test_a_flood_of_records_is_refused_unseen_and_known_records_pass_without_a_check() -> None:
    checked: list[bytes] = []

    def check(subkey: str, value: bytes) -> bool:
        checked.append(value)
        return True

    now = [0.0]
    validator = libp2p_records._Validator(check, clock=lambda: now[0])
    assert validator.validate(record(0))
    assert sum(validator.validate(record(number)) for number in range(1, 5_000)) == 511
    assert len(checked) == 512
    assert validator.validate(record(0))
    now[0] += 1
    assert sum(validator.validate(record(number)) for number in range(5_000, 9_000)) == 256


def settings(folder: Path, name: str, *join: str) -> Libp2pSettings:
    home = folder / name
    home.mkdir()
    identity = Identity.create(home / "key")
    return Libp2pSettings(home / "key", identity.peer_id, home, ("/ip4/127.0.0.1/tcp/0",), join)


def store_of(transport: Libp2pTransport) -> Any:
    assert transport._life is not None
    return transport._life.records._node.protocol.storage


async def test_a_record_that_is_no_good_hides_no_other(folder: Path) -> None:
    key, lives = DHTID.generate(source="key"), time.time() + 600
    async with Libp2pTransport(settings(folder, "a"), lambda subkey, value: True) as a:
        for number, value in enumerate((b"good", b"bad", b"good")):
            store_of(a).store_subkey(key, f"owner {number}", msgspec.msgpack.encode(value), lives)
        join = a.state.addresses[0]
        async with Libp2pTransport(settings(folder, "b", join), lambda subkey, value: value != b"bad") as b:
            async with asyncio.timeout(20):
                while not (found := await b.get_records("key")):  # noqa: ASYNC110  # no event
                    await asyncio.sleep(0.1)
            assert found == {"owner 0": b"good", "owner 2": b"good"}


@pytest.mark.parametrize("place", [0, 3, 5])
async def test_what_a_node_holds_is_handed_over_whatever_the_other_has_of_it(
    folder: Path, place: int
) -> None:
    lives, value = time.time() + 600, msgspec.msgpack.encode(b"value")
    keys = [DHTID.generate(source=number) for number in range(100)]
    blamed: list[Reason] = []
    standing = msgspec.structs.replace(EQUAL_STANDING, blame=lambda peer, reason: blamed.append(reason))
    async with Libp2pTransport(settings(folder, "a"), lambda subkey, value: True) as a:
        for number in range(6):
            store_of(a).store_subkey(keys[0], f"owner {number}", value, lives)
        for number, key in enumerate(keys[1:]):
            store_of(a).store_subkey(key, f"other {number}", value, lives)
        joining = settings(folder, "b", a.state.addresses[0])
        async with Libp2pTransport(joining, lambda subkey, value: True, standing) as b:
            store_of(b).store_subkey(keys[0], f"owner {place}", value, lives)
            async with asyncio.timeout(20):
                while len(store_of(b)) < 105:  # noqa: ASYNC110  # a store has no event
                    await asyncio.sleep(0.1)
            assert blamed == []
            assert set(a.state.dht_requests) == {"answered"}


async def test_an_answer_with_more_records_than_a_node_may_hold_is_not_looked_at(folder: Path) -> None:
    checked: list[str] = []

    def check(subkey: str, value: bytes) -> bool:
        checked.append(subkey)
        return True

    identity = Identity.create(folder / "key")
    settings = Libp2pSettings(folder / "key", identity.peer_id, folder, ("/ip4/127.0.0.1/tcp/0",))
    async with Libp2pTransport(settings, check) as transport:
        assert transport._life is not None
        protocol = transport._life.records._node.protocol
        for count, taken in ((256, True), (257, False)):
            checked.clear()
            answer = DictionaryDHTValue()
            for number in range(count):
                answer.store(f"owner {number}", msgspec.msgpack.encode(b"x"), time.time() + 60)
            assert protocol._validate_dictionary(b"key", answer) is taken
            assert len(checked) == (count if taken else 0)
        # What others ask to be put into the cache is bounded by the same store.
        assert protocol.cache is protocol.storage


def test_of_any_number_of_keys_the_dht_keeps_some() -> None:
    # As libp2p_bindings has imported them: without the rest of hivemind.
    table = sys.modules["hivemind.dht.routing"].RoutingTable(DHTID.generate(source="own"), 20, 5)
    blacklist = sys.modules["hivemind.dht.node"].Blacklist(5.0, 2.0)
    node = SimpleNamespace(protocol=SimpleNamespace(routing_table=table), blacklist=blacklist)
    records = libp2p_records.Records(node, "own")
    members = [DHTID.generate(source=f"peer {number}") for number in range(20)]
    for number in range(20_000):
        node_id, peer_id = DHTID.generate(source=f"peer {number}"), PeerID(number.to_bytes(34, "big"))
        table.add_or_update_node(node_id, peer_id)
        blacklist.register_failure(peer_id)
    before = len(table.uid_to_peer_id)
    records.tidy()
    assert before == 20_000
    assert len(table.uid_to_peer_id) == len(table.peer_id_to_uid) < 4_000
    assert len(blacklist.ban_counter) == 0
    # Who was there first is still there.
    assert all(node_id in table for node_id in members)
