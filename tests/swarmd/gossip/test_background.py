import asyncio

import pytest

from swarmd.gossip.background import Background


async def for_ever() -> None:
    await asyncio.Event().wait()


async def fail() -> None:
    raise OSError("the work failed")


async def test_the_work_is_cancelled_at_the_end_of_the_block() -> None:
    ended = []

    async def work() -> None:
        try:
            await for_ever()
        finally:
            ended.append(True)

    async with Background(work(), "work"):
        await asyncio.sleep(0)
        assert not ended
    assert ended


async def test_an_exception_of_the_block_comes_out_as_it_is() -> None:
    with pytest.raises(KeyError):
        async with Background(for_ever(), "work"):
            raise KeyError("the block failed")


async def test_a_failure_of_the_work_ends_the_block() -> None:
    with pytest.raises(ExceptionGroup, match="unhandled errors") as caught:
        async with Background(fail(), "work"):
            await for_ever()
    assert isinstance(caught.value.exceptions[0], OSError)


async def test_cancellation_goes_through() -> None:
    async def block() -> None:
        async with Background(for_ever(), "work"):
            await for_ever()

    task = asyncio.create_task(block())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
