"""The train loop: rounds, what a failing trainer costs, and when the trainer is asked for the canary."""

import asyncio
import random
from collections.abc import Callable

import msgspec
import pytest

from swarmd.errors import WorkerError
from swarmd.loops.canary import Canary
from swarmd.loops.state import LoopState
from swarmd.loops.train import Round, TrainLoop
from swarmd.replay.adaptive import AdaptiveMix, MixLimits, RoundSignal
from swarmd.replay.buffer import ReplayBuffer
from swarmd.replay.pace import Pace
from swarmd.replay.sampler import Sampler
from swarmd.replay.screens import BatchShare
from swarmd.training.messages import StepMetrics, StepReply
from swarmd.types import RolloutGroup

MakeGroup = Callable[..., RolloutGroup]

METRICS = StepMetrics(
    loss=0.1,
    grad_norm=1.0,
    mean_ratio=1.0,
    clipped_share=0.0,
    kl=None,
    entropy=1.0,
    sampler_gap=0.0,
    tokens=10,
    groups=2,
    groups_with_signal=2,
    dropped_groups=0,
    updates=1,
    skipped_updates=0,
    total_skipped_updates=0,
    learning_rate=3e-4,
    seconds=0.1,
)


class FakeTrainer:
    """Counts versions up; fails, or takes its time, when told to."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.version = 0
        self.failures = 0
        self.metrics = METRICS
        self.seen: list[tuple[RolloutGroup, ...]] = []
        self.asked: list[bool] = []

    async def step(self, groups: tuple[RolloutGroup, ...], *, canary: bool) -> StepReply:
        if self.failures:
            self.failures -= 1
            raise WorkerError("trainer died")
        await asyncio.sleep(self.seconds)
        self.seen.append(groups)
        self.version += 1
        self.asked.append(canary)
        return StepReply(self.version, self.metrics, canary_logprobs_T=(-1.0, -2.0) if canary else None)


def make_loop(buffer: ReplayBuffer, trainer: FakeTrainer, rounds: int, seen: list[Round]) -> TrainLoop:
    async def on_round(done: Round) -> None:
        seen.append(done)

    sampler = Sampler(buffer, Pace(1, 1, max_ahead=2, max_policy_lag=100), random.Random(0))
    return TrainLoop(sampler, trainer, rounds, on_round)  # type: ignore[arg-type]


@pytest.fixture
def buffer() -> ReplayBuffer:
    return ReplayBuffer(
        capacity_groups=10,
        capacity_bytes=10_000,
        peer_share=1.0,
        max_age_seconds=60.0,
        max_policy_lag=100,
        max_uses=1,
        clock=lambda: 1000.0,
    )


async def test_it_takes_as_many_rounds_as_asked_and_each_once(
    buffer: ReplayBuffer, make_group: MakeGroup
) -> None:
    state, trainer, seen = LoopState(), FakeTrainer(), []
    for number in range(8):
        buffer.add_local(make_group(number, "self"))
    async with asyncio.timeout(5):
        await make_loop(buffer, trainer, 3, seen).run(state)
    assert [done.number for done in seen] == [1, 2, 3]
    assert [group.task.index for groups in trainer.seen for group in groups] == [0, 1, 2, 3, 4, 5]
    assert (state.policy_version, state.trained_groups, state.filled) == (3, 6, 3)


async def test_it_waits_for_groups_and_says_how_many(buffer: ReplayBuffer, make_group: MakeGroup) -> None:
    state, trainer, seen = LoopState(), FakeTrainer(), []
    buffer.add_local(make_group(0, "self"))
    task = asyncio.create_task(make_loop(buffer, trainer, 1, seen).run(state))
    await asyncio.sleep(0.05)
    assert state.waiting == {"train": "1 more rollout group"}
    buffer.add_local(make_group(1, "self"))
    state.notify()
    async with asyncio.timeout(5):
        await task
    assert len(seen) == 1


async def test_a_failing_trainer_costs_its_batch_and_no_round(
    buffer: ReplayBuffer, make_group: MakeGroup
) -> None:
    state, trainer, seen = LoopState(), FakeTrainer(), []
    trainer.failures = 1
    for number in range(4):
        buffer.add_local(make_group(number, "self"))
    async with asyncio.timeout(5):
        await make_loop(buffer, trainer, 1, seen).run(state)
    assert [done.number for done in seen] == [1]
    assert [group.task.index for group in trainer.seen[0]] == [2, 3]
    assert state.problems == {}


async def test_the_trainer_is_asked_for_the_canary_only_where_a_comparison_is_due(
    buffer: ReplayBuffer, make_group: MakeGroup
) -> None:
    state, trainer, seen = LoopState(canary=Canary(every_versions=2)), FakeTrainer(), []
    state.canary.note_trainer_start(0, (-1.0, -2.0), "float32")
    state.canary.compare(0, (-1.0, -2.0), (-1.0, -2.0), "float32")
    for number in range(8):
        buffer.add_local(make_group(number, "self"))
    async with asyncio.timeout(5):
        await make_loop(buffer, trainer, 3, seen).run(state)
    assert trainer.asked == [False, True, True]
    assert [state.canary.reading(version) for version in (1, 2)] == [None, (-1.0, -2.0)]


async def test_a_step_that_is_under_way_when_the_loop_is_stopped_is_waited_for_and_counted(
    buffer: ReplayBuffer, make_group: MakeGroup
) -> None:
    state, trainer, seen = LoopState(), FakeTrainer(), []
    trainer.seconds = 0.3
    for number in range(4):
        buffer.add_local(make_group(number, "self"))
    task = asyncio.create_task(make_loop(buffer, trainer, 0, seen).run(state))
    while not state.is_stepping:  # noqa: ASYNC110
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (trainer.version, state.policy_version, state.round) == (1, 1, 1)
    assert [done.number for done in seen] == [1]
    assert not state.is_stepping


async def test_a_step_that_does_not_end_holds_the_stop_up_for_a_moment_only(
    buffer: ReplayBuffer, make_group: MakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarmd.loops.train.STEP_GRACE_SECONDS", 0.05)
    state, trainer, seen = LoopState(), FakeTrainer(), []
    trainer.seconds = 100.0
    for number in range(2):
        buffer.add_local(make_group(number, "self"))
    task = asyncio.create_task(make_loop(buffer, trainer, 0, seen).run(state))
    while not state.is_stepping:  # noqa: ASYNC110
        await asyncio.sleep(0)
    task.cancel()
    async with asyncio.timeout(5):
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (state.round, seen) == (0, [])


async def test_what_a_screen_held_up_is_told_by_author(buffer: ReplayBuffer, make_group: MakeGroup) -> None:
    trainer, told = FakeTrainer(), []
    trainer.metrics = msgspec.structs.replace(METRICS, unlikely_groups={"b": 2})
    buffer.add_local(make_group(0, "self"))
    for number in range(2):
        buffer.add_external(make_group(number, "a"))

    async def on_round(done: Round) -> None:
        pass

    sampler = Sampler(buffer, Pace(1, 2, 4, max_policy_lag=100), random.Random(0), BatchShare("warn", 0.5))
    loop = TrainLoop(sampler, trainer, 1, on_round, lambda *who: told.append(who))  # type: ignore[arg-type]
    async with asyncio.timeout(5):
        await loop.run(LoopState())
    assert told == [("a", "batch_share"), ("b", "unlikely"), ("b", "unlikely")]


async def test_the_mix_follows_what_rounds_and_evaluations_show(
    buffer: ReplayBuffer, make_group: MakeGroup
) -> None:
    class Mix(AdaptiveMix):
        noted: list[object]

        def note_held_out(self, evaluations: int, reward: float) -> None:
            self.noted.append((evaluations, reward))

        def note_round(self, signal: RoundSignal) -> None:
            self.noted.append(signal)
            self.external_groups = 2

    mix = Mix(MixLimits(0, 2, 0.05), 1)
    mix.noted = []
    trainer = FakeTrainer()
    trainer.metrics = msgspec.structs.replace(METRICS, dropped_share=0.25)
    for number in range(2):
        buffer.add_local(make_group(number, "self"))
        buffer.add_external(make_group(number))
    sampler = Sampler(buffer, Pace(1, 1, 2, max_policy_lag=100), random.Random(0), mix=mix)

    async def on_round(done: Round) -> None:
        pass

    state = LoopState(eval_reward=0.5, evaluations=3)
    async with asyncio.timeout(5):
        await TrainLoop(sampler, trainer, 1, on_round).run(state)  # type: ignore[arg-type]
    assert mix.noted == [(3, 0.5), RoundSignal(own=1.0, external=0.75)]
    assert state.external_wanted == 2
