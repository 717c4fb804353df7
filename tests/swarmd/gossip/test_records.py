import asyncio
import time

import msgspec
import pytest
from swarmd_protocol.envelope import seal_message
from swarmd_protocol.messages import Kind, ManifestMessage, NodeRecordMessage
from swarmd_protocol.topics import manifest_key, node_records_key

from swarmd.gossip.memory import InMemoryNetwork, InMemoryTransport
from swarmd.gossip.peers import PeerBook
from swarmd.gossip.publisher import Author
from swarmd.gossip.records import NodeRecords, fetch_manifests, record_check
from swarmd.gossip.transport import TransportState
from swarmd.identity import Identity, verify

SWARM = "ab" * 32
MANY_ADDRESSES = tuple(f"/ip4/192.0.2.{number}/tcp/1" for number in range(40))
ME, OTHER = Identity.generate(), Identity.generate()


def describe(name: str = "node") -> NodeRecordMessage:
    return NodeRecordMessage(
        name=name,
        model="tiny",
        software="swarmd 1",
        round=3,
        policy_version=2,
        addresses=(),
        created_ms=int(time.time() * 1000),
    )


def damaged(envelope: bytes) -> bytes:
    """With one bit of the signature flipped."""
    return envelope[:-1] + bytes([envelope[-1] ^ 1])


def author(identity: Identity, swarm_id: str = SWARM) -> Author:
    return Author(swarm_id, identity.public_key, identity.sign)


def records(
    transport: InMemoryTransport, identity: Identity, peers: PeerBook, name: str = "node"
) -> NodeRecords:
    return NodeRecords(
        transport,
        author(identity),
        lambda: describe(name),
        "name = 'tiny'",
        peers,
        verify,
        interval_seconds=30,
        ttl_seconds=120,
        max_skew_seconds=60,
    )


def seal(identity: Identity, message: object, kind: Kind = Kind.NODE_RECORD, **changes: object) -> bytes:
    now_ms = int(time.time() * 1000)
    fields = {"swarm_id": SWARM, "author": identity.public_key, "created_ms": now_ms} | changes
    return seal_message(message, kind=kind, sign=identity.sign, **fields)  # type: ignore[arg-type]


async def until_somebody_is_known(book: PeerBook) -> None:
    async with asyncio.timeout(10):
        while not book.views(()):  # noqa: ASYNC110  # a book has no event
            await asyncio.sleep(0.05)


async def test_nodes_learn_from_records_who_the_others_are() -> None:
    network = InMemoryNetwork()
    async with network.transport(ME.peer_id) as mine, network.transport(OTHER.peer_id) as others:
        my_book, other_book = PeerBook(ME.peer_id), PeerBook(OTHER.peer_id)
        my_records = records(mine, ME, my_book, "me")
        other_records = records(others, OTHER, other_book, "other")
        await my_records.write()
        await other_records.write()
        await my_records.read()
        await other_records.read()
    (view,) = my_book.views(())
    assert (view.peer_id, view.name, view.round) == (OTHER.peer_id, "other", 3)
    assert view.addresses == (f"/memory/{OTHER.peer_id}",)
    assert other_book.views(())[0].name == "me"


async def test_a_record_under_another_nodes_id_is_not_believed() -> None:
    network = InMemoryNetwork()
    async with network.transport(ME.peer_id) as mine, network.transport(OTHER.peer_id) as others:
        liar = Identity.generate()
        # The in-memory network stores under the sender's id, so the liar's seal stands under OTHER.
        await others.put_record(node_records_key(SWARM), seal(liar, describe("not other")), 60)
        book = PeerBook(ME.peer_id)
        await records(mine, ME, book).read()
    assert book.views(()) == ()


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"garbage",
        damaged(seal(OTHER, describe())),
        seal(OTHER, describe(), swarm_id="cd" * 32),
        seal(OTHER, ManifestMessage(""), kind=Kind.MANIFEST),
        seal(OTHER, describe(), created_ms=int(time.time() * 1000) - 3_600_000),
        seal(OTHER, describe("two\nlines")),
        seal(OTHER, ManifestMessage("no record")),
    ],
)
async def test_a_bad_record_is_ignored(value: bytes) -> None:
    network = InMemoryNetwork()
    async with network.transport(ME.peer_id) as mine, network.transport(OTHER.peer_id) as others:
        await others.put_record(node_records_key(SWARM), value, 60)
        book = PeerBook(ME.peer_id)
        await records(mine, ME, book).read()
    assert book.views(()) == ()


@pytest.mark.parametrize(
    ("own", "announced"),
    [
        (("/ip4/127.0.0.1/tcp/1", "/ip4/192.0.2.1/tcp/1"), ("/ip4/192.0.2.1/tcp/1",)),
        (("/ip4/127.0.0.1/tcp/1",), ("/ip4/127.0.0.1/tcp/1",)),
        (
            tuple(f"/ip4/192.0.2.{n}/tcp/1" for n in range(40)),
            tuple(f"/ip4/192.0.2.{n}/tcp/1" for n in range(16)),
        ),
    ],
)
async def test_a_record_holds_the_addresses_of_use_to_others(
    own: tuple[str, ...], announced: tuple[str, ...]
) -> None:
    class Elsewhere(InMemoryTransport):
        @property
        def state(self) -> TransportState:
            return msgspec.structs.replace(super().state, addresses=own)

    network = InMemoryNetwork()
    async with Elsewhere(network, OTHER.peer_id) as others, network.transport(ME.peer_id) as mine:
        await records(others, OTHER, PeerBook(OTHER.peer_id)).write()
        book = PeerBook(ME.peer_id)
        await records(mine, ME, book).read()
    assert book.views(())[0].addresses == announced


async def test_a_running_node_reads_again_soon_after_a_peer_connected() -> None:
    network = InMemoryNetwork()
    async with network.transport(ME.peer_id) as mine:
        book = PeerBook(ME.peer_id)
        running = asyncio.create_task(records(mine, ME, book).run())
        await asyncio.sleep(0.1)
        async with network.transport(OTHER.peer_id) as others:
            await records(others, OTHER, PeerBook(OTHER.peer_id), "late").write()
            await until_somebody_is_known(book)
        running.cancel()
    assert book.views(())[0].name == "late"


async def test_a_running_node_reads_again_soon_after_a_start_with_peers() -> None:
    network = InMemoryNetwork()
    async with network.transport(ME.peer_id) as mine, network.transport(OTHER.peer_id) as others:
        book = PeerBook(ME.peer_id)
        running = asyncio.create_task(records(mine, ME, book).run())
        await asyncio.sleep(0.1)
        await records(others, OTHER, PeerBook(OTHER.peer_id), "slow").write()
        await until_somebody_is_known(book)
        running.cancel()
    assert book.views(())[0].name == "slow"


async def test_a_network_that_is_down_does_not_end_the_records() -> None:
    network = InMemoryNetwork()
    closed = network.transport(ME.peer_id)
    running = asyncio.create_task(records(closed, ME, PeerBook(ME.peer_id)).run())
    await asyncio.sleep(0.05)
    assert not running.done()
    running.cancel()


async def test_a_joiner_that_knows_only_the_id_finds_the_manifest() -> None:
    network = InMemoryNetwork()
    async with network.transport(ME.peer_id) as mine, network.transport(OTHER.peer_id) as others:
        await records(others, OTHER, PeerBook(OTHER.peer_id)).write()
        assert await fetch_manifests(mine, SWARM, verify) == ("name = 'tiny'",)
        assert await fetch_manifests(mine, "cd" * 32, verify) == ()


async def test_manifests_with_a_bad_seal_or_text_are_left_out() -> None:
    network = InMemoryNetwork()
    key = manifest_key(SWARM)
    async with network.transport(ME.peer_id) as mine:
        for value in (
            b"",
            seal(OTHER, describe(), kind=Kind.MANIFEST),
            seal(OTHER, ManifestMessage("x" * 60_001), kind=Kind.MANIFEST),
            damaged(seal(OTHER, ManifestMessage("fine"), kind=Kind.MANIFEST)),
        ):
            network.put(key, OTHER.peer_id, value, 60)
            assert await fetch_manifests(mine, SWARM, verify) == ()


def test_a_node_holds_sealed_records_of_any_swarm_for_their_owners_only() -> None:
    holds = record_check(verify)
    assert holds(OTHER.peer_id, seal(OTHER, describe()))
    assert holds(OTHER.peer_id, seal(OTHER, describe(), swarm_id="cd" * 32))
    assert holds(OTHER.peer_id, seal(OTHER, ManifestMessage("text"), kind=Kind.MANIFEST))
    assert not holds(ME.peer_id, seal(OTHER, describe()))
    assert not holds(OTHER.peer_id, seal(OTHER, describe(), kind=Kind.ROLLOUT_GROUP))
    assert not holds(OTHER.peer_id, damaged(seal(OTHER, describe())))
    assert not holds("no peer id", seal(OTHER, describe()))
    assert not holds(OTHER.peer_id, b"free storage for everybody")
    assert not holds(OTHER.peer_id, seal(OTHER, describe("x" * 70_000)))
