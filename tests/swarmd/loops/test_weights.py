"""The weights loop: each new version reaches the generator, and the canary tells when it did not."""

import asyncio
import math
from collections.abc import Callable

import pytest

from swarmd.errors import GenerationError, WorkerError
from swarmd.generation.messages import CanaryReply
from swarmd.loops.canary import Canary
from swarmd.loops.state import LoopState
from swarmd.loops.weights import WeightsLoop
from swarmd.types import WeightHandle

HANDLE = WeightHandle("shared_memory", "name")


def right(version: int) -> tuple[float, ...]:
    """What a healthy process finds under a version."""
    return (-1.0 - version, -2.0)


class FakeGenerator:
    """Remembers which versions it was given; wrong for as many canaries as told."""

    def __init__(self) -> None:
        self.loaded: list[int] = []
        self.again: list[bool] = []
        self.failures = 0
        self.wrong: list[tuple[float, ...]] = []
        self.ahead = 0
        self.canaries = 0

    async def load_weights(self, handle: WeightHandle, version: int, *, again: bool = False) -> int:
        if self.failures:
            self.failures -= 1
            raise WorkerError("generator died")
        self.loaded.append(version + self.ahead)
        self.again.append(again)
        return version + self.ahead

    async def canary(self) -> CanaryReply:
        self.canaries += 1
        version = self.loaded[-1]
        return CanaryReply(version, self.wrong.pop(0) if self.wrong else right(version), "float32")


class Node:
    """A weights loop that runs, with the daemon's part of the trainer."""

    def __init__(self, every_versions: int = 0, max_failures: int = 5) -> None:
        self.state = LoopState(canary=Canary(every_versions))
        self.generator = FakeGenerator()
        self.restarted: list[tuple[str, str]] = []
        loop = WeightsLoop(self.generator, self.restart, max_failures)  # type: ignore[arg-type]
        self.loop = loop

    def restart(self, name: str, reason: str) -> None:
        self.restarted.append((name, reason))
        if name == "generator":
            self.state.served_version = None
            self.state.canary.note_generator_start()

    def start_trainer(self, version: int, logprobs_T: tuple[float, ...] | None = None) -> None:
        self.state.weight_handle, self.state.policy_version = HANDLE, version
        self.state.served_version = None
        self.state.canary.note_trainer_start(version, logprobs_T or right(version), "float32")
        self.state.notify()

    def step(self, version: int) -> None:
        if self.state.canary.is_due(version):
            self.state.canary.note_reading(version, right(version))
        self.state.policy_version = version
        self.state.notify()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            await self.state.until("test", condition, str)

    async def serves(self, version: int) -> None:
        await self.until(lambda: self.state.served_version == version)

    async def __aenter__(self) -> "Node":
        self.task = asyncio.create_task(self.loop.run(self.state))
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_the_generator_gets_each_new_version_also_after_it_failed() -> None:
    async with Node() as node:
        node.generator.failures = 1
        assert node.generator.loaded == []
        node.start_trainer(4)
        await node.serves(4)
        node.step(5)
        await node.serves(5)
        assert node.generator.loaded == [4, 5]
        assert node.generator.canaries == 0


async def test_a_restarted_trainer_with_an_older_version_is_followed() -> None:
    async with Node() as node:
        node.start_trainer(9)
        await node.serves(9)
        node.start_trainer(5)
        await node.serves(5)


async def test_a_generator_that_always_refuses_does_not_hold_the_event_loop() -> None:
    async with Node() as node:
        node.generator.failures = 1_000_000
        node.start_trainer(1)
        async with asyncio.timeout(5):
            await asyncio.sleep(0.1)
        assert node.generator.failures > 999_990
        assert node.state.problems == {"weights": "generator died"}


async def test_a_generator_is_compared_after_its_start_and_then_every_so_many_versions() -> None:
    async with Node(every_versions=3) as node:
        node.start_trainer(7)
        await node.serves(7)
        for version in range(8, 15):
            node.step(version)
            await node.serves(version)
        assert node.generator.canaries == 3  # 7, 10, 13
        check = node.state.canary.last
        assert check is not None
        assert (check.version, check.difference, check.is_good) == (13, 0.0, True)
        assert node.state.problems == {}
        assert node.restarted == []


async def test_a_generator_that_is_off_gets_the_weights_again_and_nothing_is_sampled_before() -> None:
    async with Node(every_versions=1) as node:
        node.start_trainer(1)
        await node.serves(1)
        served: list[int | None] = []
        original = node.generator.load_weights

        async def load_weights(handle: WeightHandle, version: int, *, again: bool = False) -> int:
            served.append(node.state.served_version)
            return await original(handle, version, again=again)

        node.generator.load_weights = load_weights  # type: ignore[method-assign]
        node.generator.wrong = [(-3.5, -2.0)]
        node.step(2)
        await node.serves(2)
        assert node.generator.loaded == [1, 2, 2]
        assert node.generator.again == [False, False, True]
        assert served == [1, None]
        assert node.restarted == []
        assert node.state.canary.total_failures == 1
        assert node.state.problems == {}


async def test_one_that_stays_off_is_restarted_and_in_the_end_given_up_in_one_line() -> None:
    async with Node(every_versions=1, max_failures=4) as node:
        node.generator.wrong = [(-1.0, -2.0)] * 4
        node.start_trainer(1)
        await asyncio.wait({node.task}, timeout=5)
        with pytest.raises(
            GenerationError, match=r"differ by 1 nats at version 1 .*4 times in a row"
        ) as error:
            node.task.result()
        assert "\n" not in str(error.value)
        assert [name for name, _ in node.restarted] == ["generator", "generator"]
        assert "differ by 1 nats" in node.restarted[0][1]
        assert "the generator is restarted" in node.state.problems["canary"]
        assert node.state.served_version is None


async def test_a_log_probability_that_is_not_finite_fails() -> None:
    async with Node(every_versions=1) as node:
        node.generator.wrong = [(-2.0, math.nan), (math.inf, -2.0)]
        node.start_trainer(1)
        await node.serves(1)
        assert node.state.canary.total_failures == 2
        assert [name for name, _ in node.restarted] == ["generator"]
        assert "not finite" in node.restarted[0][1]


async def test_a_trainer_that_is_not_finite_is_restarted_and_not_the_generator() -> None:
    async with Node(every_versions=1) as node:
        node.start_trainer(6, (math.nan, -2.0))
        await node.until(lambda: bool(node.restarted))
        await asyncio.sleep(0.05)
        assert [name for name, _ in node.restarted] == ["trainer"]
        assert node.generator.canaries == 1
        assert "the trainer's log-probabilities of version 6 are not finite" in node.state.problems["canary"]
        node.start_trainer(4)
        await node.serves(4)
        assert node.state.problems == {}


async def test_equal_versions_are_compared_when_the_generator_is_ahead_of_what_the_daemon_knows() -> None:
    async with Node(every_versions=1) as node:
        node.generator.ahead = 1
        node.start_trainer(1)
        await node.until(lambda: node.generator.canaries == 1)
        await asyncio.sleep(0.02)
        assert node.state.canary.last is None
        node.step(2)
        await node.until(lambda: node.state.canary.last is not None)
        assert node.state.canary.last is not None
        assert (node.state.canary.last.version, node.state.canary.last.is_good) == (2, True)


async def test_a_version_that_the_trainer_was_not_asked_about_is_served_uncompared() -> None:
    async with Node(every_versions=10) as node:
        node.start_trainer(1)
        await node.serves(1)
        node.step(2)
        await node.serves(2)
        node.restart("generator", "it died")
        node.state.notify()
        await node.serves(2)
        assert node.state.canary.last is not None
        assert node.state.canary.last.version == 1
        node.step(3)
        await node.until(lambda: node.state.canary.last is not None and node.state.canary.last.version == 3)


async def test_a_trainer_that_dies_before_it_answers_holds_up_nothing() -> None:
    async with Node(every_versions=1) as node:
        node.generator.ahead = 3
        node.start_trainer(5)
        await node.until(lambda: node.generator.canaries == 1)
        node.generator.ahead = 0
        node.start_trainer(4)
        await node.serves(4)
        assert node.state.canary.total_failures == 0


def sampled_nothing_finite(node: Node) -> None:
    """What the rollout loop does with such a reply."""
    node.state.canary.note_sampled(is_finite=False)
    node.state.served_version = None
    node.state.notify()


async def test_samples_that_are_not_finite_bring_new_weights_then_a_new_generator_then_the_end() -> None:
    async with Node(every_versions=100, max_failures=3) as node:
        node.start_trainer(1)
        await node.serves(1)
        sampled_nothing_finite(node)
        await node.serves(1)
        assert node.generator.again == [False, True]
        assert node.generator.canaries == 2
        assert node.restarted == []
        assert "are not finite: the generator loads its weights again" in node.state.problems["not_finite"]
        node.state.canary.note_sampled(is_finite=True)
        for _ in range(2):
            sampled_nothing_finite(node)
            await node.serves(1)
        assert [name for name, _ in node.restarted] == ["generator"]
        sampled_nothing_finite(node)
        await asyncio.wait({node.task}, timeout=5)
        with pytest.raises(GenerationError, match="not finite, 3 times in a row") as error:
            node.task.result()
        assert "canary_tolerance" not in str(error.value)


async def test_samples_that_are_not_finite_are_answered_also_when_they_meet_a_load() -> None:
    async with Node() as node:
        node.start_trainer(1)
        await node.serves(1)
        node.state.canary.note_sampled(is_finite=False)
        node.state.notify()
        await node.until(lambda: node.generator.loaded == [1, 1])
        assert node.generator.again == [False, True]
