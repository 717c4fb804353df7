"""What the records of the DHT promise beyond test_libp2p.py: clocks may differ."""

import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from swarmd.gossip import libp2p_records
from swarmd.gossip.libp2p import Libp2pSettings, Libp2pTransport
from swarmd.gossip.libp2p_bindings import DHTID, DHTRecord, DictionaryDHTValue, PeerID
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
