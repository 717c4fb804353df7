"""What waits to be looked at: bounded, in turn, and nobody pays for another's flood."""

import asyncio

import pytest

from swarmd.gossip.subscription import Received, Subscription


def message(number: int, source: str = "peer", size: int = 0) -> Received:
    return Received(source, str(number).encode().ljust(size))


async def test_messages_come_out_in_the_order_they_arrived() -> None:
    subscription = Subscription("topic", 8)
    for number in range(3):
        subscription.push(message(number))
    assert [await anext(subscription) for _ in range(3)] == [message(number) for number in range(3)]


async def test_a_full_subscription_drops_the_oldest_and_counts_it() -> None:
    subscription = Subscription("topic", 2)
    for number in range(5):
        subscription.push(message(number))
    subscription.close()
    assert [received async for received in subscription] == [message(3), message(4)]
    assert subscription.dropped == 3


async def test_a_waiting_consumer_is_woken_by_a_message_and_by_the_close() -> None:
    subscription = Subscription("topic", 2)

    async def consume() -> list[Received]:
        return [received async for received in subscription]

    consumer = asyncio.create_task(consume())
    await asyncio.sleep(0)
    subscription.push(message(1))
    await asyncio.sleep(0)
    subscription.close()
    assert await consumer == [message(1)]


async def test_each_message_goes_to_one_of_several_consumers() -> None:
    subscription = Subscription("topic", 100)

    async def consume() -> list[Received]:
        taken = []
        async for received in subscription:
            taken.append(received)
            await asyncio.sleep(0)
        return taken

    consumers = [asyncio.create_task(consume()) for _ in range(3)]
    for number in range(30):
        subscription.push(message(number))
        if number % 7 == 0:
            await asyncio.sleep(0)
    subscription.close()
    taken = [received for consumer in consumers for received in await consumer]
    assert sorted(int(received.data) for received in taken) == list(range(30))


async def test_a_closed_subscription_takes_nothing_more() -> None:
    subscription = Subscription("topic", 2)
    subscription.close()
    subscription.push(message(1))
    assert [received async for received in subscription] == []


def test_a_subscription_without_room_is_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="capacity must be at least 1, got 0"):
        Subscription("topic", 0)


async def drain(subscription: Subscription) -> list[str]:
    """What is left, as `source number`."""
    subscription.close()
    return [f"{each.source} {int(each.data)}" async for each in subscription]


async def test_sources_take_turns_and_a_flood_delays_another_by_one_message() -> None:
    subscription = Subscription("topic", 1_000)
    for number in range(500):
        subscription.push(message(number, "flooder"))
    for number in range(3):
        subscription.push(message(number, "honest"))
    assert (await drain(subscription))[:6] == [
        "flooder 0",
        "honest 0",
        "flooder 1",
        "honest 1",
        "flooder 2",
        "honest 2",
    ]


async def test_a_full_queue_takes_from_the_source_with_most_messages() -> None:
    subscription = Subscription("topic", 4)
    subscription.push(message(0, "honest"))
    for number in range(100):
        subscription.push(message(number, "flooder"))
    subscription.push(message(1, "honest"))
    assert sorted(await drain(subscription)) == ["flooder 98", "flooder 99", "honest 0", "honest 1"]
    assert subscription.dropped == 98


async def test_room_is_bounded_in_bytes_and_the_source_with_most_of_them_gives_way() -> None:
    subscription = Subscription("topic", 1_000, capacity_bytes=10_000)
    for number in range(20):
        subscription.push(message(number, "honest", size=100))
    for number in range(20):
        subscription.push(message(number, "fat", size=4_000))
    waiting = await drain(subscription)
    assert len([each for each in waiting if each.startswith("honest")]) == 20
    assert [each for each in waiting if each.startswith("fat")] == ["fat 18", "fat 19"]


async def test_one_message_larger_than_all_room_leaves_again() -> None:
    subscription = Subscription("topic", 10, capacity_bytes=100)
    subscription.push(message(1, size=200))
    assert len(subscription) == 0
    assert subscription.dropped == 1


class Bouncer:
    """Admits even numbers."""

    def __init__(self) -> None:
        self.dropped: list[str] = []

    def admits(self, received: Received) -> bool:
        return int(received.data) % 2 == 0

    def note_dropped(self, source: str) -> None:
        self.dropped.append(source)


async def test_the_door_decides_what_takes_room_and_hears_what_had_to_leave() -> None:
    door = Bouncer()
    subscription = Subscription("topic", 2, door)
    for number in range(6):
        subscription.push(message(number))
    assert door.dropped == ["peer"]
    assert await drain(subscription) == ["peer 2", "peer 4"]


async def test_an_answer_to_our_own_request_passes_the_door() -> None:
    subscription = Subscription("topic", 2, Bouncer())
    subscription.push(Received("peer", b"1", asked_for=True))
    assert await drain(subscription) == ["peer 1"]


async def test_a_source_has_no_more_messages_at_once_than_allowed_until_one_is_released() -> None:
    subscription = Subscription("topic", 10, at_once=1)
    for number in range(2):
        subscription.push(message(number, "slow"))
    subscription.push(message(0, "other"))
    taken = [await anext(subscription), await anext(subscription)]
    assert [each.source for each in taken] == ["slow", "other"]
    waits = asyncio.ensure_future(anext(subscription))
    await asyncio.sleep(0.01)
    assert not waits.done()
    subscription.release("slow")
    assert (await waits).data == b"1"
