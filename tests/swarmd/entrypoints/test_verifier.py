"""The real verifier process under its real supervisor, attacked as a peer would attack it."""

import asyncio
from contextlib import asynccontextmanager

import psutil
import pytest
import pytest_asyncio

from swarmd.errors import ConfigError
from swarmd.rewards.messages import INITIALISE, ScoreReason, VerifierSettings
from swarmd.rewards.sandbox import LAYERS
from swarmd.rewards.verifier import VerifierPool
from swarmd.tasks.manifest import Manifest, task_digest
from swarmd.tasks.reasoning_gym import TaskLibrary
from swarmd.tasks.source import TaskSource
from swarmd.types import TaskReference, TaskSpec
from swarmd.workers.supervisor import Worker, WorkerLimits

TINY = Manifest.load("tiny")

# One process is shared by the tests that do not need settings of their own.
pytestmark = pytest.mark.asyncio(loop_scope="module")


@asynccontextmanager
async def run_verifier(tasks=TINY.tasks, strict=True, timeout_seconds=4.0, memory_bytes=300_000_000):
    """A pool over one real verifier, the worker, and what it said when it was ready."""
    answers = []

    async def initialise(worker):
        settings = VerifierSettings(tasks, strict, timeout_seconds, memory_bytes)
        answers.append(await worker.call(INITIALISE, settings, 120.0))

    limits = WorkerLimits(start_timeout_seconds=120.0, max_fast_failures=1)
    worker = Worker("verifier", "swarmd.entrypoints.verifier", limits, initialise)
    running = asyncio.create_task(worker.run())
    try:
        await worker.wait_ready()
        yield VerifierPool([worker.call], timeout_seconds), worker, answers[0]
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def verifier():
    async with run_verifier() as running:
        yield running


async def test_right_answers_get_full_reward_and_wrong_ones_none(verifier):
    library = TaskLibrary(TINY.tasks)
    pool, _, _ = verifier
    references = TaskSource(TINY, "peer", 0).draw(30)
    questions = await pool.regenerate(references)
    for reference, question in zip(references, questions, strict=True):
        task = library.task(reference)
        reply = await pool.score(reference, [task.answer, "never", f"so: <answer> {task.answer} </answer>"])
        assert reply.question == question == task.question
        assert reply.rewards_G == (1.0, 0.0, 1.0)
        assert reply.reasons_G == (None, None, None)


async def test_partial_credit_is_the_datasets_own_score(verifier):
    reference = TaskReference(
        "fraction_simplification", TINY.task_digests["fraction_simplification"], 5_000_000, 0
    )
    own = TaskLibrary(TINY.tasks).task(reference).score("nonsense")
    assert 0 < own < 0.5
    async with run_verifier(strict=False) as (pool, _, _):
        assert (await pool.score(reference, ["nonsense"])).rewards_G == (own,)
    pool, _, _ = verifier
    assert (await pool.score(reference, ["nonsense"])).rewards_G == (0.0,)


async def test_verifier_closes_itself_with_every_layer_this_machine_has(verifier):
    _, _, ready = verifier
    if {"seccomp", "landlock"} <= set(ready.sandbox_layers):
        assert ready.missing_layers == ()
    else:
        named = {*ready.sandbox_layers, *(line.split(":")[0] for line in ready.missing_layers)}
        assert named == set(LAYERS)


async def test_item_that_takes_too_long_costs_only_itself():
    # Simplifying this takes sympy minutes.
    slow = "+".join(f"sin(x**{n})*cos({n}*x)**{n}*exp(x/{n})" for n in range(2, 40))
    spec = TaskSpec("simple_integration", {}, 1.0, task_digest("simple_integration", {}, "0.1.25"))
    reference = TaskReference(spec.dataset, spec.digest, 1, 0)
    answer = TaskLibrary([spec]).task(reference).answer
    # Memory enough that time is what it runs out of.
    async with run_verifier(tasks=(spec,), memory_bytes=4_000_000_000) as (pool, worker, _):
        reply = await pool.score(reference, [slow, answer])
        assert reply.rewards_G == (0.0, 1.0)
        assert ScoreReason(reply.reasons_G[0]) is ScoreReason.TIMEOUT
        assert psutil.Process(worker.pid).children(recursive=True) == []
        assert worker.restarts == 0


async def test_reference_outside_the_manifest_is_refused_with_a_reason(verifier):
    pool, _, _ = verifier
    other_config = TaskReference("countdown", task_digest("countdown", {"min_value": 2}, "0.1.25"), 1, 0)
    reply = await pool.score(other_config, ["1", "2"])
    assert reply.question is None
    assert reply.reasons_G == (ScoreReason.UNKNOWN_TASK,) * 2
    assert await pool.regenerate([other_config]) == (None,)


async def test_seeds_and_indices_of_any_size_are_answered(verifier):
    pool, _, _ = verifier
    references = [
        TaskReference(task.dataset, task.digest, seed, index)
        for task in TINY.tasks
        for seed, index in [(0, 2**62), (2**62, 0), (2**62, 2**62)]
    ]
    assert all(question for question in await pool.regenerate(references))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"min_n": 0}, "task binary_matrix: config: min_n must be at least 1"),
        ({"min_n": 30_000, "max_n": 30_000}, "task binary_matrix: generates nothing: MemoryError"),
    ],
)
async def test_configuration_that_cannot_be_generated_is_a_config_error_that_names_it(config, expected):
    async def initialise(worker):
        task = TaskSpec("binary_matrix", config, 1.0, "d")
        await worker.call(INITIALISE, VerifierSettings((task,), True, 1.0, 200_000_000), 120.0)

    worker = Worker("verifier", "swarmd.entrypoints.verifier", WorkerLimits(), initialise)
    with pytest.raises(ConfigError, match=expected):
        await worker.run()
