import asyncio

import pytest

from swarmd.gossip.transport import (
    MAX_MESSAGE_BYTES,
    MAX_RECORD_BYTES,
    MessageTooLargeError,
    Received,
    Subscription,
    check_message_size,
    check_record_size,
)


def message(number: int) -> Received:
    return Received("peer", str(number).encode())


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


def test_sizes_at_the_limit_pass_and_above_it_raise() -> None:
    check_message_size(bytes(MAX_MESSAGE_BYTES))
    check_record_size(bytes(MAX_RECORD_BYTES))
    with pytest.raises(MessageTooLargeError, match=str(MAX_MESSAGE_BYTES)):
        check_message_size(bytes(MAX_MESSAGE_BYTES + 1))
    with pytest.raises(MessageTooLargeError, match=str(MAX_RECORD_BYTES)):
        check_record_size(bytes(MAX_RECORD_BYTES + 1))
