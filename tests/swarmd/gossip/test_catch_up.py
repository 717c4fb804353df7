import asyncio
from typing import Any

import pytest
from swarmd_protocol.codec import decode, encode
from swarmd_protocol.messages import CatchUpReply, CatchUpRequest
from swarmd_protocol.topics import CATCH_UP_PROTOCOL

from swarmd.gossip.catch_up import CatchUp, CatchUpServer, RecentGroups
from swarmd.gossip.memory import InMemoryNetwork
from swarmd.gossip.peers import PeerBook
from swarmd.gossip.reputation import Reputation, ReputationSettings
from swarmd.gossip.subscription import Received, Subscription
from swarmd.gossip.transport import MAX_REPLY_BYTES

SWARM = "ab" * 32
NOW = 1_700_000_000.0
NOW_MS = int(NOW * 1000)


def recent_groups(groups: int = 100, size_bytes: int = 1_000_000) -> RecentGroups:
    return RecentGroups(groups, size_bytes, max_age_ms=600_000, wall_clock=lambda: NOW)


def filled(count: int, each_bytes: int = 10, groups: int = 100, size_bytes: int = 1_000_000) -> RecentGroups:
    recent = recent_groups(groups, size_bytes)
    for number in range(count):
        recent.add(number.to_bytes(each_bytes, "big"), NOW_MS - 1_000 + number, b"author")
    return recent


def numbers(envelopes: tuple[bytes, ...]) -> list[int]:
    return [int.from_bytes(envelope, "big") for envelope in envelopes]


def test_recent_groups_come_newest_first_within_the_limits_asked_for() -> None:
    recent = filled(10)
    assert numbers(recent.newest(0, 3, 1_000)) == [9, 8, 7]
    assert numbers(recent.newest(0, 100, 25)) == [9, 8]
    assert numbers(recent.newest(NOW_MS - 1_000 + 8, 100, 1_000)) == [9, 8]


def test_recent_groups_are_bounded_in_number_and_in_bytes() -> None:
    assert numbers(filled(10, groups=3).newest(0, 100, 1_000)) == [9, 8, 7]
    assert numbers(filled(10, size_bytes=45).newest(0, 100, 1_000)) == [9, 8, 7, 6]


def test_a_flood_of_one_author_leaves_the_groups_of_others() -> None:
    recent = recent_groups(groups=10)
    for number in range(3):
        recent.add(b"honest %d" % number, NOW_MS, b"honest")
    for number in range(1_000):
        recent.add(b"flood %d" % number, NOW_MS, b"flooder")
    held = recent.newest(0, 100, 1_000)
    assert len(held) == len(recent) == 10
    assert [envelope for envelope in held if envelope.startswith(b"honest")] == [
        b"honest 2",
        b"honest 1",
        b"honest 0",
    ]


def test_groups_that_would_be_stale_on_arrival_are_left_out() -> None:
    recent = recent_groups()
    recent.add(b"old", NOW_MS - 600_001, b"author")
    recent.add(b"fresh", NOW_MS - 599_000, b"author")
    assert recent.newest(0, 10, 1_000) == (b"fresh",)


async def ask(server: CatchUpServer, peer_id: str = "peer", **changes: int | str) -> CatchUpReply:
    fields = {"swarm_id": SWARM, "since_ms": 0, "max_groups": 100, "max_bytes": 1_000_000} | changes
    reply = decode(await server.answer(peer_id, encode(CatchUpRequest(**fields))), CatchUpReply)
    assert isinstance(reply, CatchUpReply)
    return reply


async def test_the_server_gives_no_more_than_it_wants_whatever_is_asked_for() -> None:
    assert numbers((await ask(CatchUpServer(SWARM, filled(10), 2, 1_000))).envelopes) == [9, 8]
    assert numbers((await ask(CatchUpServer(SWARM, filled(10), 100, 35))).envelopes) == [9, 8, 7]
    assert numbers((await ask(CatchUpServer(SWARM, filled(10), 5, 1_000), max_groups=1)).envelopes) == [9]


async def test_the_largest_reply_can_be_sent() -> None:
    recent = filled(200, each_bytes=100_000, groups=1_000, size_bytes=100_000_000)
    server = CatchUpServer(SWARM, recent, 1_000, 100_000_000)
    reply = await server.answer("peer", encode(CatchUpRequest(SWARM, 0, 1_000, 100_000_000)))
    assert 15_000_000 < len(reply) <= MAX_REPLY_BYTES


async def test_a_request_for_another_swarm_or_without_sense_is_refused_with_the_reason() -> None:
    server = CatchUpServer(SWARM, filled(10), 10, 1_000)
    assert (await ask(server, swarm_id="cd" * 32)).refused == "wrong_swarm"
    assert (await ask(server, max_groups=-1)).refused == "malformed"
    for garbage in (b"", b"\xc1", b"\xdf\xff\xff\xff\xff", bytes(100)):
        reply = decode(await server.answer("peer", garbage), CatchUpReply)
        assert isinstance(reply, CatchUpReply)
        assert reply.refused == "malformed"
        assert reply.envelopes == ()


async def test_a_peer_that_asks_again_at_once_is_told_to_wait() -> None:
    now = [0.0]
    server = CatchUpServer(SWARM, filled(10), 10, 1_000, clock=lambda: now[0])
    assert (await ask(server)).refused is None
    assert "again" in str((await ask(server)).refused)
    assert (await ask(server, peer_id="another")).refused is None
    now[0] += 6
    assert (await ask(server)).refused is None


async def test_many_peers_that_ask_at_once_get_no_more_than_a_few_answers_until_later() -> None:
    now = [0.0]
    server = CatchUpServer(SWARM, filled(10, each_bytes=100), 10, 1_000, clock=lambda: now[0])
    replies = [await ask(server, peer_id=f"key {number}") for number in range(100)]
    assert 8 <= sum(reply.refused is None for reply in replies) <= 10
    now[0] += 60
    assert (await ask(server, peer_id="later")).refused is None


async def catch_up(
    servers: dict[str, RecentGroups], max_groups: int = 100, max_bytes: int = 1_000_000, **others: Any
) -> tuple[CatchUp, Subscription]:
    network = InMemoryNetwork()
    joiner = network.transport("joiner")
    inbox = Subscription("topic", 1_000)
    task = CatchUp(joiner, SWARM, inbox, max_groups, max_bytes, 600, wall_clock=lambda: NOW, **others)
    async with joiner:
        for peer_id, recent in servers.items():
            member = network.transport(peer_id)
            await member.__aenter__()
            server = CatchUpServer(SWARM, recent, 1_000, 1_000_000)
            member.serve(CATCH_UP_PROTOCOL, server.answer)
        await task.run(patience_seconds=1)
    return task, inbox


async def test_a_joiner_gets_what_a_peer_holds_oldest_first() -> None:
    task, inbox = await catch_up({"a": filled(5)})
    inbox.close()
    assert [received async for received in inbox] == [
        Received("a", number.to_bytes(10, "big"), asked_for=True) for number in range(5)
    ]
    assert (task.result.envelopes, task.result.bytes, task.result.peers) == (5, 50, 1)


async def test_a_joiner_asks_several_peers_but_stops_when_it_has_enough() -> None:
    task, inbox = await catch_up({name: filled(5) for name in "abcde"}, max_groups=13)
    assert task.result.peers == 3
    assert len(inbox) == 15
    # However much one peer gives, another is asked as well.
    for limits in ({"max_groups": 5}, {"max_bytes": 50}):
        task, inbox = await catch_up({name: filled(5) for name in "abc"}, **limits)
        assert task.result.peers == 2
    task, inbox = await catch_up({name: filled(1) for name in map(str, range(20))})
    assert task.result.peers == 16


async def test_what_is_not_valid_counts_for_nothing_and_another_peer_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("swarmd.gossip.catch_up._MOST_LOOKS", 1)
    servers = {f"junk {number}": filled(5) for number in range(9)} | {"honest": filled(5)}
    task, _ = await catch_up(servers, max_groups=5, valid_from=lambda peer: 5 * (peer == "honest"))
    assert task.result.peers == 10


async def test_a_peer_that_is_silent_does_not_keep_the_others_from_being_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("swarmd.gossip.catch_up._NEXT_AFTER_SECONDS", 0.05)
    network = InMemoryNetwork()
    inbox = Subscription("topic", 1_000)
    async with network.transport("joiner") as joiner, network.transport("honest") as honest:
        for number in range(8):
            silent = network.transport(f"silent {number}")
            await silent.__aenter__()

            async def wait(peer_id: str, data: bytes) -> bytes:
                return await asyncio.Future()

            silent.serve(CATCH_UP_PROTOCOL, wait)
        honest.serve(CATCH_UP_PROTOCOL, CatchUpServer(SWARM, filled(3), 10, 1_000).answer)
        task = CatchUp(joiner, SWARM, inbox, 100, 1_000_000, 600, wall_clock=lambda: NOW)
        running = asyncio.create_task(task.run(patience_seconds=60))
        async with asyncio.timeout(10):
            while not len(inbox):  # noqa: ASYNC110  # a queue without an event for tests
                await asyncio.sleep(0.05)
        running.cancel()
    assert len(inbox) == 3


async def test_peers_in_good_standing_are_asked_first() -> None:
    peers = PeerBook("own", Reputation(ReputationSettings(newcomer_groups=1), lambda peer: None, lambda: NOW))
    peers.note_accepted("f", useful=True)
    peers.note_accepted("h", useful=True)
    servers = {name: filled(5) for name in "abcdefghij"}
    task, inbox = await catch_up(servers, max_groups=10, peers=peers)
    assert task.result.peers == 2
    inbox.close()
    assert {received.source async for received in inbox} == {"f", "h"}


async def test_a_peer_that_answers_nonsense_or_too_much_is_passed_over() -> None:
    network = InMemoryNetwork()
    inbox = Subscription("topic", 1_000)
    async with (
        network.transport("joiner") as joiner,
        network.transport("liar") as liar,
        network.transport("glutton") as glutton,
        network.transport("honest") as honest,
    ):

        async def lie(peer_id: str, data: bytes) -> bytes:
            return b"\xdd\xff\xff\xff\xff"

        async def overdo(peer_id: str, data: bytes) -> bytes:
            return encode(CatchUpReply(envelopes=(bytes(2_000_000),)))

        liar.serve(CATCH_UP_PROTOCOL, lie)
        glutton.serve(CATCH_UP_PROTOCOL, overdo)
        honest.serve(CATCH_UP_PROTOCOL, CatchUpServer(SWARM, filled(3), 10, 1_000).answer)
        task = CatchUp(joiner, SWARM, inbox, 100, 1_000_000, 600, wall_clock=lambda: NOW)
        result = await task.run(patience_seconds=1)
    assert result.envelopes == len(inbox) == 3
    assert result.peers == 1


async def test_a_joiner_waits_for_the_first_peer_but_not_for_ever() -> None:
    network = InMemoryNetwork()
    inbox = Subscription("topic", 1_000)
    async with network.transport("joiner") as joiner:
        task = CatchUp(joiner, SWARM, inbox, 100, 1_000_000, 600, wall_clock=lambda: NOW)
        assert (await task.run(patience_seconds=0.2)).peers == 0
        running = asyncio.create_task(task.run(patience_seconds=20))
        await asyncio.sleep(0.1)
        async with network.transport("late") as late:
            late.serve(CATCH_UP_PROTOCOL, CatchUpServer(SWARM, filled(3), 10, 1_000).answer)
            async with asyncio.timeout(10):
                while not len(inbox):  # noqa: ASYNC110  # a queue without an event for tests
                    await asyncio.sleep(0.05)
            running.cancel()
    assert task.result.envelopes == 3


async def test_a_bad_request_is_counted_for_the_peer_that_sent_it() -> None:
    peers = PeerBook("own")
    server = CatchUpServer(SWARM, filled(10), 10, 1_000, peers)
    await ask(server, peer_id="a", swarm_id="cd" * 32)
    await server.answer("a", b"\xc1")
    await ask(server, peer_id="b")
    await ask(server, peer_id="b")
    counted = {view.peer_id: view.rejected for view in peers.views(())}
    assert counted == {"a": {"wrong_swarm": 1, "malformed": 1}, "b": {"rate_limited": 1}}


async def test_an_answer_with_more_than_was_asked_for_is_refused_whole_and_counted_for_the_giver() -> None:
    answers = {
        "many": encode(CatchUpReply(envelopes=(b"x",) * 11)),
        "large": encode(CatchUpReply(envelopes=(bytes(1_001),))),
        "garbage": b"\xc1",
        "refuses": encode(CatchUpReply(refused="no")),
        "good": encode(CatchUpReply(envelopes=(b"x",) * 10)),
    }
    network = InMemoryNetwork()
    joiner = network.transport("joiner")
    peers = PeerBook("own")
    inbox = Subscription("topic", 1_000)
    task = CatchUp(joiner, SWARM, inbox, 10, 1_000, 600, peers)
    async with joiner:
        for peer_id, answer in answers.items():
            member = network.transport(peer_id)
            await member.__aenter__()

            async def reply(source: str, data: bytes, answer: bytes = answer) -> bytes:
                return answer

            member.serve(CATCH_UP_PROTOCOL, reply)
        await task.run(patience_seconds=1)
    counted = {view.peer_id: view.rejected for view in peers.views(())}
    assert counted == {"many": {"oversized": 1}, "large": {"oversized": 1}, "garbage": {"malformed": 1}}
    assert len(inbox) == 10
