import asyncio
import contextlib
import time

from swarmd.monitor.loop_lag import LoopLag


@contextlib.asynccontextmanager
async def measuring():
    lag = LoopLag()
    task = asyncio.create_task(lag.run())
    await asyncio.sleep(0.05)
    yield lag
    task.cancel()


async def test_a_blocked_loop_is_noticed():
    async with measuring() as lag:
        time.sleep(0.3)  # noqa: ASYNC251, this is the fault to be found
        await asyncio.sleep(0.05)
        assert lag.max_ms > 200
        assert lag.max_busy_ms < 150


async def test_a_loop_kept_busy_is_told_from_one_that_slept():
    async with measuring() as lag:
        end = time.thread_time() + 0.3
        while time.thread_time() < end:
            pass
        await asyncio.sleep(0.05)
        assert lag.max_busy_ms > 200


async def test_the_recent_lag_starts_anew_each_time_it_is_taken():
    async with measuring() as lag:
        time.sleep(0.3)  # noqa: ASYNC251, this is the fault to be found
        await asyncio.sleep(0.05)
        assert lag.take_recent_ms() > 200
        assert lag.take_recent_ms() == 0.0
        assert lag.max_ms > 200


async def test_a_restart_forgets_what_was_measured():
    async with measuring() as lag:
        time.sleep(0.3)  # noqa: ASYNC251, this is the fault to be found
        await asyncio.sleep(0.05)
        lag.restart()
        assert (lag.max_ms, lag.take_recent_ms()) == (0.0, 0.0)
