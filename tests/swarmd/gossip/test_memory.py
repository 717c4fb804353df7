import asyncio

import pytest

from swarmd.gossip.memory import InMemoryNetwork
from swarmd.gossip.subscription import Received, Subscription
from swarmd.gossip.transport import (
    MAX_MESSAGE_BYTES,
    MAX_REQUEST_BYTES,
    MessageTooLargeError,
    RequestError,
    TransportDownError,
)


async def test_a_message_reaches_all_other_subscribers_but_not_its_author() -> None:
    network = InMemoryNetwork()
    async with network.transport("a") as a, network.transport("b") as b, network.transport("c") as c:
        inboxes = [member.subscribe(Subscription("topic", 8)) for member in (a, b, c)]
        await a.publish("topic", b"hello")
        await b.publish("other topic", b"elsewhere")
        await asyncio.sleep(0.01)
        assert [len(inbox) for inbox in inboxes] == [0, 1, 1]
        assert await anext(inboxes[1]) == Received("a", b"hello")


async def test_delay_postpones_and_reorders_messages() -> None:
    network = InMemoryNetwork(seed=1, delay_seconds=(0.0, 0.05))
    async with network.transport("a") as a, network.transport("b") as b:
        inbox = b.subscribe(Subscription("topic", 100))
        for number in range(20):
            await a.publish("topic", bytes([number]))
        assert len(inbox) == 0
        order = [(await anext(inbox)).data[0] for _ in range(20)]
    assert sorted(order) == list(range(20))
    assert order != list(range(20))


async def lost_numbers(seed: int) -> list[int]:
    network = InMemoryNetwork(seed=seed, loss=0.5)
    async with network.transport("a") as a, network.transport("b") as b:
        inbox = b.subscribe(Subscription("topic", 100))
        for number in range(50):
            await a.publish("topic", bytes([number]))
        await asyncio.sleep(0.01)
    arrived = [received.data[0] async for received in inbox]
    assert network.lost == 50 - len(arrived)
    return [number for number in range(50) if number not in arrived]


async def test_losses_follow_the_seed() -> None:
    first = await lost_numbers(seed=3)
    assert 10 < len(first) < 40
    assert first == await lost_numbers(seed=3)
    assert first != await lost_numbers(seed=4)


async def test_records_are_kept_by_owner_and_expire() -> None:
    now = [100.0]
    network = InMemoryNetwork(clock=lambda: now[0])
    async with network.transport("a") as a, network.transport("b") as b:
        await a.put_record("key", b"old", 50)
        await a.put_record("key", b"of a", 10)
        await b.put_record("key", b"of b", 20)
        assert await b.get_records("key") == {"a": b"of a", "b": b"of b"}
        now[0] += 15
        assert await a.get_records("key") == {"b": b"of b"}
        assert await a.get_records("other key") == {}


async def test_a_request_is_answered_by_the_handler_of_its_protocol() -> None:
    network = InMemoryNetwork(delay_seconds=(0.001, 0.002))
    async with network.transport("a") as a, network.transport("b") as b:

        async def greet(peer_id: str, data: bytes) -> bytes:
            return data + b" from " + peer_id.encode()

        b.serve("/greet", greet)
        assert await a.request("b", "/greet", b"hi", 1) == b"hi from a"
        with pytest.raises(RequestError, match="not supported"):
            await a.request("b", "/other", b"hi", 1)
        with pytest.raises(RequestError, match="no peer nobody"):
            await a.request("nobody", "/greet", b"hi", 1)
        with pytest.raises(RequestError, match="bytes at most"):
            await a.request("b", "/greet", bytes(MAX_REQUEST_BYTES + 1), 1)


async def test_a_request_that_takes_too_long_fails() -> None:
    network = InMemoryNetwork()
    async with network.transport("a") as a, network.transport("b") as b:

        async def dawdle(peer_id: str, data: bytes) -> bytes:
            await asyncio.sleep(10)
            return data

        b.serve("/slow", dawdle)
        with pytest.raises(RequestError, match=r"no reply in 0\.01 s"):
            await a.request("b", "/slow", b"", 0.01)


async def test_a_message_above_the_limit_is_refused() -> None:
    network = InMemoryNetwork()
    async with network.transport("a") as a:
        with pytest.raises(MessageTooLargeError):
            await a.publish("topic", bytes(MAX_MESSAGE_BYTES + 1))


async def test_members_see_each_other_while_open_and_closing_ends_subscriptions() -> None:
    network = InMemoryNetwork()
    a, b = network.transport("a"), network.transport("b")
    inbox = a.subscribe(Subscription("topic", 8))
    with pytest.raises(TransportDownError):
        await a.publish("topic", b"")
    async with b:
        async with a:
            assert set(b.state.connected) == {"a"}
            assert a.state.up
        assert [received async for received in inbox] == []
        assert b.state.connected == {}
    assert not a.state.up
