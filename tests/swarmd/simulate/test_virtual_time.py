import asyncio
import time

import pytest

from swarmd.simulate.virtual_time import EPOCH, VirtualTimeLoop


def test_an_hour_of_sleep_takes_no_time_and_order_is_that_of_the_clock() -> None:
    async def sleepers() -> list[tuple[str, float]]:
        loop = asyncio.get_running_loop()
        woken: list[tuple[str, float]] = []

        async def sleeper(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            woken.append((name, loop.time()))

        await asyncio.gather(sleeper("b", 3600.0), sleeper("a", 0.5), sleeper("c", 7200.0))
        return woken

    began = time.monotonic()
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(sleepers()) == [("a", 0.5), ("b", 3600.0), ("c", 7200.0)]
        loop = runner.get_loop()
        assert isinstance(loop, VirtualTimeLoop)
        assert loop.wall_time() == EPOCH + 7200.0
    assert time.monotonic() - began < 3600


def test_waiting_for_what_never_comes_is_an_error() -> None:
    async def waits() -> None:
        await asyncio.Event().wait()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner, pytest.raises(RuntimeError, match="waits"):
        runner.run(waits())
