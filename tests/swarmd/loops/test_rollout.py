"""The rollout loop: what it samples, when it pauses, and what a failing worker costs."""

import asyncio
import math
from collections.abc import Sequence

import pytest
from swarmd_protocol.errors import Reason

from swarmd.errors import WorkerError
from swarmd.generation.messages import SampleReply, SampleRequest
from swarmd.loops.rollout import RolloutLoop, Sampling
from swarmd.loops.state import LoopState
from swarmd.replay.buffer import ReplayBuffer
from swarmd.replay.pace import Pace
from swarmd.rewards.messages import ScoreReply
from swarmd.tasks.manifest import Manifest
from swarmd.tasks.source import TaskSource
from swarmd.types import Completion, FinishReason, RolloutGroup, SampledGroup, TaskReference


class FakeGenerator:
    """Answers right and wrong in turn; fails when told to."""

    def __init__(self) -> None:
        self.requests: list[SampleRequest] = []
        self.failures = 0
        self.not_finite: list[int] = []
        """For each call, how many of its groups have a number that is none."""

    async def sample(self, request: SampleRequest) -> SampleReply:
        await asyncio.sleep(0)
        if self.failures:
            self.failures -= 1
            raise WorkerError("generator died")
        self.requests.append(request)
        completions_G = tuple(
            Completion("right" if i % 2 else "wrong", FinishReason.STOP, (1, 2), (-0.1, -0.2))
            for i in range(request.group_size)
        )
        broken_G = (*completions_G[:-1], Completion("right", FinishReason.STOP, (1, 2), (-0.1, math.nan)))
        broken = self.not_finite.pop(0) if self.not_finite else 0
        groups = [SampledGroup(completions_G, 7)] * (len(request.prompts) - broken)
        return SampleReply((*[SampledGroup(broken_G, 7)] * broken, *groups), 10, 0.1)


class FakeVerifier:
    """Knows every question; cannot score those with an index in `broken`."""

    def __init__(self) -> None:
        self.broken: set[int] = set()
        self.may_score = asyncio.Event()
        self.may_score.set()

    async def regenerate(self, references: Sequence[TaskReference]) -> tuple[str | None, ...]:
        return tuple(f"question {reference.index}" for reference in references)

    async def score(self, reference: TaskReference, completions_G: Sequence[str]) -> ScoreReply:
        await self.may_score.wait()
        count = len(completions_G)
        if reference.index in self.broken:
            return ScoreReply(None, (0.0,) * count, ("crashed",) * count)
        rewards_G = tuple(float(text == "right") for text in completions_G)
        return ScoreReply(f"question {reference.index}", rewards_G, (None,) * count)


class FakePublisher:
    """Takes groups; refuses the first `refused`."""

    def __init__(self, refused: int = 0) -> None:
        self.refused = refused
        self.groups: list[RolloutGroup] = []

    async def publish(self, group: RolloutGroup) -> Reason | None:
        if self.refused:
            self.refused -= 1
            return Reason.TOO_LARGE_TO_PUBLISH
        self.groups.append(group)
        return None


class Rig:
    """A rollout loop with fakes around it."""

    def __init__(self, publisher: FakePublisher | None = None) -> None:
        self.state = LoopState(served_version=7, policy_version=7)
        self.generator, self.verifier = FakeGenerator(), FakeVerifier()
        self.buffer = ReplayBuffer(
            capacity_groups=10,
            capacity_bytes=1_000_000,
            peer_share=1.0,
            max_age_seconds=60.0,
            max_policy_lag=4,
            max_uses=1,
            clock=lambda: 0.0,
        )
        manifest = Manifest.load("tiny")
        self.loop = RolloutLoop(
            peer_id="self",
            manifest=manifest,
            sampling=Sampling(group_size=4, batch_questions=2, max_new_tokens=16, temperature=0.7),
            pace=Pace(2, 2, max_ahead=4, max_policy_lag=4),
            source=TaskSource(manifest, "self", 0),
            generator=self.generator,  # type: ignore[arg-type]
            verifier=self.verifier,  # type: ignore[arg-type]
            buffer=self.buffer,
            publisher=publisher,  # type: ignore[arg-type]
            seed_of=lambda position: position,
        )

    async def run_until_paused(self) -> None:
        task = asyncio.create_task(self.loop.run(self.state))
        async with asyncio.timeout(5):
            await self.state.until(
                "test", lambda: "rollout" in self.state.waiting and not self.state.in_flight, str
            )
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_it_samples_up_to_max_ahead_and_then_waits_for_the_trainer() -> None:
    rig = Rig()
    await rig.run_until_paused()
    assert rig.state.waiting["rollout"] == "the trainer to use waiting groups"
    assert len(rig.buffer.take_local(100)) == 4


async def test_groups_carry_task_prompt_tokens_rewards_and_version() -> None:
    rig = Rig()
    await rig.run_until_paused()
    first, second, *_ = rig.buffer.take_local(100)
    manifest = Manifest.load("tiny")
    assert first.prompt.text == f"{manifest.prompt.prefix}question 0{manifest.prompt.suffix}"
    assert (first.task.index, second.task.index) == (0, 1)
    assert first.rewards_G == (0.0, 1.0, 0.0, 1.0)
    assert first.completions_G[0].token_ids_T == (1, 2)
    assert (first.author, first.is_local, first.policy_version) == ("self", True, 7)
    assert first.group_id != second.group_id


async def test_requests_carry_the_nodes_sampling_settings_and_ever_new_seeds() -> None:
    rig = Rig()
    await rig.run_until_paused()
    requests = rig.generator.requests
    assert {(r.group_size, r.max_new_tokens, r.temperature) for r in requests} == {(4, 16, 0.7)}
    assert len({r.seed for r in requests}) == len(requests) == 2


async def test_nothing_is_sampled_before_the_generator_has_the_policy() -> None:
    rig = Rig()
    rig.state.served_version = None
    await rig.run_until_paused()
    assert rig.state.waiting["rollout"] == "the policy to be loaded"
    assert rig.generator.requests == []


async def test_every_own_group_is_published_and_refusals_are_counted() -> None:
    publisher = FakePublisher(refused=1)
    rig = Rig(publisher)
    await rig.run_until_paused()
    assert len(publisher.groups) == 3
    assert rig.state.unpublished == {"too_large_to_publish": 1}


async def test_a_failing_generator_costs_its_questions_and_nothing_else() -> None:
    rig = Rig()
    rig.generator.failures = 1
    await rig.run_until_paused()
    assert [group.task.index for group in rig.buffer.take_local(100)] == [2, 3, 4, 5]
    assert rig.state.problems == {}


async def test_a_group_that_cannot_be_scored_is_not_learned_from() -> None:
    rig = Rig()
    rig.verifier.broken = {0}
    await rig.run_until_paused()
    assert [group.task.index for group in rig.buffer.take_local(100)] == [1, 2, 3, 4]
    assert rig.state.own_since_round.mean == pytest.approx(0.5)


async def test_sampling_goes_on_while_answers_are_scored_and_the_order_stays() -> None:
    rig = Rig()
    rig.verifier.may_score.clear()
    task = asyncio.create_task(rig.loop.run(rig.state))
    async with asyncio.timeout(5):
        # Two calls of two questions; then max_ahead is reached, although nothing is scored yet.
        await rig.state.until("test", lambda: "rollout" in rig.state.waiting, str)
    assert (len(rig.generator.requests), rig.state.in_flight) == (2, [7, 7, 7, 7])
    assert rig.buffer.local_versions() == ()
    rig.verifier.may_score.set()
    async with asyncio.timeout(5):
        await rig.state.until("test", lambda: not rig.state.in_flight, str)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [group.task.index for group in rig.buffer.take_local(100)] == [0, 1, 2, 3]


async def test_a_group_with_a_log_probability_that_is_no_number_is_refused_and_counted() -> None:
    rig = Rig()
    rig.generator.not_finite = [1]
    await rig.run_until_paused()
    assert [group.task.index for group in rig.buffer.take_local(100)] == [1]
    assert rig.state.refused == {"not_finite": 1}
    assert rig.state.served_version is None
    assert (rig.state.canary.not_finite, rig.state.canary.is_suspect) == (1, True)
    assert len(rig.generator.requests) == 1
    # Once the weights loop has seen to it, sampling goes on.
    rig.state.served_version = 7
    rig.state.waiting.clear()
    await rig.run_until_paused()
    assert rig.state.canary.not_finite == 0
    assert rig.state.refused == {"not_finite": 1}
