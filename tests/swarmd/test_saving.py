"""What a node keeps over its ends, with a trainer that keeps it in memory."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from swarmd.errors import CheckpointError, WorkerError, WorkerRefusalError
from swarmd.loops.state import LoopState, Means, SavedState
from swarmd.replay.buffer import ReplayBuffer
from swarmd.saving import SaveError, Saver
from swarmd.tasks.manifest import Manifest
from swarmd.types import RolloutGroup

MakeGroup = Callable[..., RolloutGroup]


class Trainer:
    """Keeps the last request; fails with what it is told to fail with."""

    def __init__(self) -> None:
        self.failure: Exception | None = None

    async def save(self, request: Any, timeout_seconds: float) -> Any:
        if self.failure is not None:
            raise self.failure
        self.request = request
        self.timeout_seconds = timeout_seconds
        return SimpleNamespace(path="checkpoints/checkpoint-1", bytes=5_000_000_000)


def make_saver(trainer: Trainer, state: LoopState, swarm: str = "tiny") -> tuple[Saver, ReplayBuffer]:
    buffer = ReplayBuffer(
        capacity_groups=10,
        capacity_bytes=100_000,
        peer_share=1.0,
        max_age_seconds=1e6,
        max_policy_lag=4,
        max_uses=1,
        clock=lambda: 1000.0,
    )
    return Saver(trainer, state, buffer, Manifest.load(swarm)), buffer  # type: ignore[arg-type]


def ready(node_state: bytes | None) -> Any:
    return SimpleNamespace(node_state=node_state, resumed_from="checkpoint-1", parameters=500_000_000)


async def test_a_node_goes_on_where_its_checkpoint_stands(make_group: MakeGroup) -> None:
    trainer, state = Trainer(), LoopState()
    saver, buffer = make_saver(trainer, state)
    source = saver.resume(ready(None), "peer", 0)
    state.round = 7
    source.draw(5)
    state.task_position = 3
    state.own_reward_total, state.eval_reward = 3.5, 0.25
    state.own_since_round.add(0.75)
    buffer.add_external(make_group(1, "a"))
    assert await saver.save("as asked") == "checkpoints/checkpoint-1"
    assert (trainer.request.round, trainer.request.eval_reward) == (7, 0.25)

    later = LoopState()
    after, its_buffer = make_saver(trainer, later)
    its_source = after.resume(ready(trainer.request.node_state), "peer", 0)
    assert (later.round, later.own_reward_total, later.eval_reward) == (7, 3.5, 0.25)
    assert later.own_since_round == Means(0.75, 1)
    # The two tasks that were drawn and not through are drawn again.
    assert (later.task_position, its_source.position) == (3, 3)
    its_source.draw(2)
    assert its_source.draw(3) == source.draw(3)
    assert [group.author for group in its_buffer.drawable()] == ["a"]


async def test_a_checkpoint_waits_for_the_step_that_is_under_way() -> None:
    trainer, state = Trainer(), LoopState()
    saver, _ = make_saver(trainer, state)
    saver.resume(ready(None), "peer", 0)
    state.is_stepping = True
    saving = asyncio.create_task(saver.save("as asked"))
    await asyncio.sleep(0.05)
    assert not saving.done()
    state.is_stepping = False
    state.close_round()
    state.notify()
    async with asyncio.timeout(5):
        await saving
    assert trainer.request.round == 1


async def test_groups_of_another_swarm_are_not_learned_from(make_group: MakeGroup) -> None:
    trainer = Trainer()
    saver, buffer = make_saver(trainer, LoopState())
    saver.resume(ready(None), "peer", 0)
    buffer.add_external(make_group(1, "a"))
    await saver.save("as asked")
    other, its_buffer = make_saver(trainer, LoopState(), swarm="sapo-nine")
    other.resume(ready(trainer.request.node_state), "peer", 0)
    assert its_buffer.drawable() == []


async def test_a_failure_is_kept_as_a_problem_until_a_checkpoint_succeeds() -> None:
    trainer = Trainer()
    saver, _ = make_saver(trainer, LoopState())
    with pytest.raises(SaveError, match="still starting"):
        await saver.save("as asked")
    assert saver.problem == ""
    saver.resume(ready(None), "peer", 0)
    trainer.failure = WorkerRefusalError("trainer: the disk is full", "CheckpointError", "the disk is full")
    await saver.save_or_say("after round 3")
    assert saver.problem == "no checkpoint after round 3: trainer: the disk is full"
    for failure, words in ((WorkerError("was killed"), "was killed"), (TimeoutError(), "within 128 s")):
        trainer.failure = failure
        await saver.save_or_say("at the end", 8.0)
        assert words in saver.problem
        assert saver.problem.endswith("; the older ones are kept")
    trainer.failure = None
    await saver.save_or_say("after round 4")
    assert saver.problem == ""


async def test_a_large_checkpoint_has_the_time_that_a_slow_disk_needs_for_it() -> None:
    trainer = Trainer()
    saver, _ = make_saver(trainer, LoopState())
    assert saver.disk_seconds == 0
    saver.resume(ready(None), "peer", 0)
    assert saver.disk_seconds == 120  # Estimated: weights and Adam's state of 500 million parameters.
    await saver.save("at the end", 8.0)
    assert trainer.timeout_seconds == 128
    assert saver.disk_seconds == 100  # As large as the last one was.


def test_a_newer_node_state_is_refused() -> None:
    saver, _ = make_saver(Trainer(), LoopState())
    with pytest.raises(CheckpointError, match="newer swarmd"):
        saver.resume(ready(SavedState(format=99).encode()), "peer", 0)
