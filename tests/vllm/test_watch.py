"""Whatever is asked of vLLM is given up when it hangs, also when nothing is being sampled."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from swarmd.generation.vllm import VllmEngine


class Server:
    """Stands for one of vLLM whose core answers, or hangs."""

    def __init__(self, hangs: bool) -> None:
        self._hangs = hangs

    async def answers(self) -> None:
        if self._hangs:
            await asyncio.Event().wait()


@pytest.fixture
def engine() -> Iterator[VllmEngine]:
    engine = VllmEngine.__new__(VllmEngine)
    engine._loop, engine._settings = asyncio.new_event_loop(), SimpleNamespace(stall_seconds=0.5)
    yield engine
    engine._loop.close()


def test_work_without_end_is_given_up_when_the_core_hangs(engine: VllmEngine) -> None:
    engine._server = Server(hangs=True)
    with pytest.raises(RuntimeError, match=r"no step for 0\.5 s \(generation\.stall_seconds\)"):
        engine._run(asyncio.Event().wait())


def test_long_work_of_a_core_that_answers_is_waited_for(engine: VllmEngine) -> None:
    engine._server = Server(hangs=False)
    assert engine._run(asyncio.sleep(2.5, "done")) == "done"
