"""What the loops share: waiting with a reason, and the round's own books."""

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from swarmd.errors import CheckpointError, WorkerError, WorkerRefusalError
from swarmd.loops.state import LoopState, SavedState
from swarmd.replay.buffer import SavedGroup
from swarmd.types import RolloutGroup


async def test_a_waiting_loop_goes_on_when_it_is_notified_and_says_what_it_waits_for() -> None:
    state = LoopState()
    door = {"open": False}
    waiter = asyncio.create_task(state.until("train", lambda: door["open"], lambda: "the door"))
    await asyncio.sleep(0)
    assert state.waiting == {"train": "the door"}
    door["open"] = True
    state.notify()
    async with asyncio.timeout(0.5):
        await waiter
    assert state.waiting == {}


async def test_a_waiting_loop_looks_again_by_itself() -> None:
    state = LoopState()
    door = {"open": False}
    waiter = asyncio.create_task(state.until("train", lambda: door["open"], lambda: "the door"))
    await asyncio.sleep(0)
    door["open"] = True
    async with asyncio.timeout(5):
        await waiter


async def test_all_waiting_loops_are_woken_by_one_notice() -> None:
    state = LoopState()
    door = {"open": False}
    waiters = [
        asyncio.create_task(state.until(str(n), lambda: door["open"], lambda: "the door")) for n in range(3)
    ]
    await asyncio.sleep(0)
    door["open"] = True
    state.notify()
    async with asyncio.timeout(0.5):
        await asyncio.gather(*waiters)


def test_a_rounds_own_reward_is_the_mean_of_all_own_groups_since_the_last_round() -> None:
    state = LoopState()
    state.own_since_round.add(0.0)
    state.own_since_round.add(0.5)
    state.close_round()
    assert (state.round, state.local_mean, state.own_reward_total) == (1, 0.25, 0.25)


def test_a_round_without_own_groups_keeps_the_last_mean_and_adds_nothing() -> None:
    state = LoopState()
    state.own_since_round.add(0.5)
    state.close_round()
    state.close_round()
    assert (state.round, state.local_mean, state.own_reward_total) == (2, 0.5, 0.5)


def test_a_saved_state_comes_back_and_an_older_one_is_read(make_group: Callable[..., RolloutGroup]) -> None:
    state = SavedState(
        round=7,
        source_position=9,
        swarm_id="s",
        saved_at=1.5,
        groups=(SavedGroup(make_group(1), age_seconds=2.0, uses=1),),
    )
    assert SavedState.decode(state.encode()) == state
    before_buffers_were_saved = msgspec.msgpack.encode(
        {"round": 7, "source_position": 9, "own_reward_total": 1.0, "format": 1}
    )
    assert SavedState.decode(before_buffers_were_saved) == SavedState(7, 9, 1.0)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (msgspec.msgpack.encode({"format": 2, "round": "seven"}), "of a newer swarmd"),
        (b"\xff", "is not understood"),
        (msgspec.msgpack.encode({"format": 1, "round": "seven"}), "is not understood"),
    ],
)
def test_a_state_that_cannot_be_read_is_one_clear_line(data: bytes, said: str) -> None:
    with pytest.raises(CheckpointError, match=said) as caught:
        SavedState.decode(data)
    assert "\n" not in str(caught.value)


async def test_what_a_worker_refuses_is_in_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    state = LoopState()
    refused = [
        WorkerRefusalError(f"generator worker: a prompt has {tokens} tokens", "GenerationError", "...")
        for tokens in (600, 601, 602)
    ]
    for error in refused[:2]:
        await state.note_failure("rollout", error)
        assert state.problems == {"rollout": str(error)}
    del state.problems["rollout"]  # As after a success.
    for error in (WorkerError("generator worker was killed"), refused[2]):
        await state.note_failure("rollout", error)
        del state.problems["rollout"]
    assert caplog.messages == [str(refused[0]), str(refused[2])]
