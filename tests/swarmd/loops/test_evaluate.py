"""The evaluation loop: greedy answers to the held-out tasks, before the first round and when due."""

import asyncio
import math
from collections.abc import Sequence

from swarmd.errors import WorkerError
from swarmd.generation.messages import SampleReply, SampleRequest
from swarmd.loops.evaluate import EvaluateLoop
from swarmd.loops.state import LoopState
from swarmd.rewards.messages import ScoreReply
from swarmd.tasks.manifest import Manifest
from swarmd.tasks.source import held_out_tasks, is_held_out
from swarmd.types import Completion, FinishReason, SampledGroup, TaskReference

MANIFEST = Manifest.load("tiny")


class FakeGenerator:
    """Remembers what it was asked."""

    def __init__(self) -> None:
        self.requests: list[SampleRequest] = []
        self.logprobs: list[float] = []

    async def sample(self, request: SampleRequest) -> SampleReply:
        self.requests.append(request)
        logprob = self.logprobs.pop(0) if self.logprobs else -1.0
        answer = (Completion("answer", FinishReason.STOP, (1,), (logprob,)),)
        return SampleReply(tuple(SampledGroup(answer, 0) for _ in request.prompts), 1, 0.0)


class FakeVerifier:
    """Every third task is answered right. Fails at first when told to."""

    def __init__(self) -> None:
        self.failures = 0
        self.asked: list[TaskReference] = []

    async def regenerate(self, references: Sequence[TaskReference]) -> tuple[str | None, ...]:
        if self.failures:
            self.failures -= 1
            raise WorkerError("verifier-1 died")
        return tuple("question" for _ in references)

    async def score(self, reference: TaskReference, completions_G: Sequence[str]) -> ScoreReply:
        self.asked.append(reference)
        return ScoreReply("question", (float(reference.index % 3 == 0),), (None,))


def make_loop(verifier: FakeVerifier, generator: FakeGenerator) -> EvaluateLoop:
    return EvaluateLoop(
        manifest=MANIFEST,
        tasks=held_out_tasks(MANIFEST, 18),
        every_rounds=10,
        max_new_tokens=16,
        generator=generator,  # type: ignore[arg-type]
        verifier=verifier,  # type: ignore[arg-type]
    )


async def test_it_evaluates_at_the_start_and_every_so_many_rounds() -> None:
    state, verifier, generator = LoopState(served_version=0), FakeVerifier(), FakeGenerator()
    task = asyncio.create_task(make_loop(verifier, generator).run(state))
    async with asyncio.timeout(5):
        await state.until("test", lambda: state.eval_reward is not None, str)
    assert state.eval_reward == 6 / 18
    asked = len(verifier.asked)
    for _ in range(9):
        state.close_round()
    state.notify()
    await asyncio.sleep(0.05)
    assert len(verifier.asked) == asked
    state.close_round()
    state.notify()
    async with asyncio.timeout(5):
        await state.until("test", lambda: len(verifier.asked) == 2 * asked, str)
    task.cancel()


async def test_how_often_may_change_while_it_runs() -> None:
    state, verifier, generator = LoopState(served_version=0), FakeVerifier(), FakeGenerator()
    loop = make_loop(verifier, generator)
    loop.every_rounds = 0
    task = asyncio.create_task(loop.run(state))
    for _ in range(5):
        state.close_round()
    state.notify()
    await asyncio.sleep(0.05)
    assert verifier.asked == []
    loop.every_rounds = 10
    state.notify()
    async with asyncio.timeout(5):
        await state.until("test", lambda: state.evaluations == 1, str)
    loop.every_rounds = 3
    state.close_round()
    state.notify()
    async with asyncio.timeout(5):
        await state.until("test", lambda: state.evaluations == 2, str)
    task.cancel()


async def test_a_node_that_goes_on_evaluates_when_it_is_due() -> None:
    state, verifier, generator = LoopState(served_version=0), FakeVerifier(), FakeGenerator()
    state.round, state.eval_reward = 10, 0.5  # Saved after the evaluation of round 10.
    task = asyncio.create_task(make_loop(verifier, generator).run(state))
    await asyncio.sleep(0.05)
    assert verifier.asked == []
    for _ in range(10):
        state.close_round()
    state.notify()
    async with asyncio.timeout(5):
        await state.until("test", lambda: state.eval_reward == 6 / 18, str)
    task.cancel()


async def test_it_asks_each_held_out_task_once_and_greedily() -> None:
    state, verifier, generator = LoopState(served_version=0), FakeVerifier(), FakeGenerator()
    task = asyncio.create_task(make_loop(verifier, generator).run(state))
    async with asyncio.timeout(5):
        await state.until("test", lambda: state.eval_reward is not None, str)
    assert sorted(reference.index for reference in verifier.asked) == list(range(18))
    assert all(is_held_out(reference, MANIFEST) for reference in verifier.asked)
    assert {(request.temperature, request.group_size) for request in generator.requests} == {(0.0, 1)}
    task.cancel()


async def test_a_failing_verifier_is_a_problem_until_the_next_evaluation() -> None:
    state, verifier, generator = LoopState(served_version=0), FakeVerifier(), FakeGenerator()
    verifier.failures = 1
    task = asyncio.create_task(make_loop(verifier, generator).run(state))
    async with asyncio.timeout(5):
        await state.until("test", lambda: "evaluate" in state.problems, str)
    for _ in range(10):
        state.close_round()
    state.notify()
    async with asyncio.timeout(5):
        await state.until("test", lambda: state.eval_reward is not None, str)
    assert state.problems == {}
    task.cancel()


async def test_nothing_is_evaluated_before_the_generator_has_the_policy() -> None:
    state, verifier, generator = LoopState(served_version=None), FakeVerifier(), FakeGenerator()
    task = asyncio.create_task(make_loop(verifier, generator).run(state))
    await asyncio.sleep(0.05)
    assert generator.requests == []
    state.served_version = 120
    state.notify()
    async with asyncio.timeout(5):
        await state.until("test", lambda: state.eval_reward is not None, str)
    task.cancel()


async def test_answers_whose_log_probabilities_are_not_finite_are_no_evaluation() -> None:
    state, verifier, generator = LoopState(served_version=0), FakeVerifier(), FakeGenerator()
    generator.logprobs = [-1.0, math.nan]
    task = asyncio.create_task(make_loop(verifier, generator).run(state))
    async with asyncio.timeout(5):
        await state.until("test", lambda: "evaluate" in state.problems, str)
    assert "not finite" in state.problems["evaluate"]
    assert state.eval_reward is None
    task.cancel()
