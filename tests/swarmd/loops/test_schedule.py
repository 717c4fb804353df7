"""The loops together: sampling and training overlap or alternate, and nothing sampled is lost."""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from swarmd.config import Config
from swarmd.generation.messages import SampleReply, SampleRequest
from swarmd.loops.rollout import RolloutLoop, Sampling
from swarmd.loops.state import LoopState
from swarmd.loops.train import Round, TrainLoop
from swarmd.loops.weights import WeightsLoop
from swarmd.replay.buffer import ReplayBuffer
from swarmd.replay.pace import Pace
from swarmd.replay.sampler import Sampler
from swarmd.rewards.messages import ScoreReply
from swarmd.rooms import pace
from swarmd.tasks.manifest import Manifest
from swarmd.tasks.source import TaskSource
from swarmd.training.messages import StepMetrics, StepReply
from swarmd.types import Completion, FinishReason, RolloutGroup, SampledGroup, TaskReference, WeightHandle

METRICS = StepMetrics(
    *(None, None, None, None, None, None, None),
    tokens=0,
    groups=2,
    groups_with_signal=2,
    dropped_groups=0,
    updates=1,
    skipped_updates=0,
    total_skipped_updates=0,
    learning_rate=0.0,
    seconds=0.0,
)


@dataclass
class FakeWorkers:
    """A generator that takes as long as its answers are, a trainer that takes `step_turns`, a verifier."""

    step_turns: int
    version: int = 0
    served: int = 0
    sampled: list[int] = field(default_factory=list)
    """Length of each own group's answers, in the order asked."""
    steps: list[tuple[int, tuple[RolloutGroup, ...]]] = field(default_factory=list)
    """The version that each step began with, and its groups."""
    busy: set[str] = field(default_factory=set)
    overlaps: int = 0
    lengths: random.Random = field(default_factory=lambda: random.Random(0))

    async def _work(self, name: str, turns: int) -> None:
        self.busy.add(name)
        self.overlaps += len(self.busy) == 2
        for _ in range(turns):
            await asyncio.sleep(0)
        self.busy.discard(name)

    async def sample(self, request: SampleRequest) -> SampleReply:
        version = self.served
        lengths = [self.lengths.choice((1, 2, 40)) for _ in request.prompts]
        self.sampled += lengths
        await self._work("generator", max(lengths))
        groups = tuple(
            SampledGroup((Completion("x" * length, FinishReason.STOP),) * request.group_size, version)
            for length in lengths
        )
        return SampleReply(groups, sum(lengths), 0.0)

    async def load_weights(self, handle: WeightHandle, version: int, *, again: bool) -> int:
        self.served = version
        return version

    async def step(self, groups: tuple[RolloutGroup, ...], *, canary: bool) -> StepReply:
        self.steps.append((self.version, groups))
        await self._work("trainer", self.step_turns)
        self.version += 1
        return StepReply(self.version, METRICS)

    async def regenerate(self, references: Sequence[TaskReference]) -> tuple[str | None, ...]:
        return tuple(f"question {reference.index}" for reference in references)

    async def score(self, reference: TaskReference, completions_G: Sequence[str]) -> ScoreReply:
        await asyncio.sleep(0)
        return ScoreReply("question", (0.0,) * len(completions_G), (None,) * len(completions_G))


async def run(
    workers: FakeWorkers, pace: Pace, rounds: int, external: Sequence[RolloutGroup] = ()
) -> ReplayBuffer:
    """Run the three loops for so many rounds, with peers' groups in the buffer."""
    state = LoopState(served_version=0, weight_handle=WeightHandle("shared_memory", "name"))
    buffer = ReplayBuffer(
        capacity_groups=100,
        capacity_bytes=100_000,
        peer_share=1.0,
        max_age_seconds=1e9,
        max_policy_lag=0,
        max_uses=1,
        clock=asyncio.get_running_loop().time,
    )

    for group in external:
        assert buffer.add_external(group) is None

    async def on_round(done: Round) -> None:
        del done

    rollout = RolloutLoop(
        peer_id="self",
        manifest=(manifest := Manifest.load("tiny")),
        sampling=Sampling(group_size=2, batch_questions=2, max_new_tokens=40, temperature=1.0),
        pace=pace,
        source=TaskSource(manifest, "self", 0),
        generator=workers,  # type: ignore[arg-type]
        verifier=workers,  # type: ignore[arg-type]
        buffer=buffer,
        publisher=None,
        seed_of=lambda position: position,
    )
    train = TrainLoop(Sampler(buffer, pace, random.Random(0)), workers, rounds, on_round)  # type: ignore[arg-type]
    weights = WeightsLoop(workers, lambda name, reason: None, max_failures=1)  # type: ignore[arg-type]
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        companions = [group.create_task(rollout.run(state)), group.create_task(weights.run(state))]
        await train.run(state)
        for task in companions:
            task.cancel()
    return buffer


def all_groups(workers: FakeWorkers) -> list[RolloutGroup]:
    return [group for _, groups in workers.steps for group in groups]


def lags(workers: FakeWorkers) -> list[int]:
    return [version - group.policy_version for version, groups in workers.steps for group in groups]


@pytest.mark.parametrize("max_policy_lag", [0, 1, 4])
@pytest.mark.parametrize("step_turns", [1, 30, 300])
async def test_no_own_group_is_dropped_or_too_late_however_slow_the_trainer(
    step_turns: int, max_policy_lag: int
) -> None:
    workers = FakeWorkers(step_turns)
    buffer = await run(workers, Pace(4, 0, max_ahead=40, max_policy_lag=max_policy_lag), rounds=40)
    trained = [len(group.completions_G[0].text) for _, groups in workers.steps for group in groups]
    # Long answers and short ones are trained on just as they were sampled.
    assert trained == workers.sampled[: len(trained)]
    assert len(trained) == 160
    assert buffer.stats().dropped == {}
    assert max(lags(workers)) <= max_policy_lag


async def test_with_a_slow_trainer_the_whole_lag_is_used_and_sampling_overlaps_training() -> None:
    workers = FakeWorkers(step_turns=300)
    await run(workers, Pace(4, 0, max_ahead=40, max_policy_lag=4), rounds=40)
    assert max(lags(workers)) == 4
    assert workers.overlaps > 20


async def test_synchronous_alternates_and_trains_on_the_newest_policy_only() -> None:
    workers = FakeWorkers(step_turns=30)
    buffer = await run(workers, Pace.synchronous(2, 2), rounds=20)
    assert workers.overlaps == 0
    assert set(lags(workers)) == {0}
    assert (len(workers.sampled), buffer.stats().dropped) == (80, {})


async def test_synchronous_samples_only_what_peers_groups_leave_to_be_sampled(
    make_group: Callable[..., RolloutGroup],
) -> None:
    workers = FakeWorkers(step_turns=30)
    external = [make_group(number, received_at=0.0) for number in range(9)]
    await run(workers, Pace.synchronous(2, 2), 20, external)
    foreign = [sum(not group.is_local for group in groups) for _, groups in workers.steps]
    # Two of nine a round while they last.
    assert foreign == [2, 2, 2, 2, 1] + [0] * 15
    assert len(workers.sampled) == 20 * 4 - 9
    assert {lag for lag, group in zip(lags(workers), all_groups(workers), strict=True) if group.is_local} == {
        0
    }


def test_the_mode_of_the_config_chooses_the_pace() -> None:
    asked = {"replay": {"local_groups": 2, "external_groups": 1, "max_policy_lag": 3}}
    assert pace(Config.model_validate(asked | {"rollout": {"batch_questions": 5}})) == Pace(2, 1, 8, 3)
    ahead = {"max_ahead": 9}
    assert pace(Config.model_validate(asked | {"schedule": ahead})) == Pace(2, 1, 9, 3)
    synchronous = Config.model_validate(asked | {"schedule": ahead | {"mode": "synchronous"}})
    assert pace(synchronous) == Pace(2, 1, 3, 0)
