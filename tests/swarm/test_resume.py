"""A node that takes turns: what its workers wait for each other, and that a stop changes nothing of it."""

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from swarmd.loops.state import SavedState
from swarmd.monitor.history import read_rounds

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(600)]

MakeNode = Callable[..., Any]

# In turn, so that which policy samples which group does not hang on who is faster.
SETTINGS = (
    "--isolated",
    *("--seed", "7"),
    *("--set", "schedule.mode=synchronous"),
    # An evaluation would have the generator work while the trainer does.
    *("--set", "schedule.eval_every_rounds=0"),
    *("--set", "training.tokens_at_once=4096"),
    *("--set", "schedule.checkpoint_keep=100"),
)


def newest_checkpoint(home: Path) -> Path:
    return max((home / "checkpoints").glob("checkpoint-*"))


def saved_state(checkpoint: Path) -> dict[str, Any]:
    """What the daemon kept, less what names moments and not the work."""
    state = SavedState.decode((checkpoint / "node_state.bin").read_bytes())
    kept: dict[str, Any] = msgspec.structs.asdict(state)
    del kept["saved_at"]
    kept["groups"] = [
        (saved.group.task, saved.group.completions_G, saved.group.rewards_G, saved.group.policy_version)
        for saved in state.groups
    ]
    return kept


def test_a_node_that_was_stopped_at_any_moment_goes_on_bit_for_bit(
    make_node: MakeNode, gone: Callable[[list[psutil.Process]], bool]
) -> None:
    stopped = make_node("stopped", *SETTINGS).start()
    before = stopped.wait_for_round(2)
    children = stopped.children()
    assert len(children) >= 3
    code, seconds = stopped.stop(signal.SIGTERM)
    assert code == 0
    assert seconds < 15
    assert gone(children)
    reached = stopped.ask("status")["round"]
    assert 2 <= reached < 200
    rounds = reached + 2

    straight = make_node("straight", *SETTINGS, "--rounds", str(rounds))
    straight.home.mkdir()
    shutil.copy(stopped.home / "identity.key", straight.home / "identity.key")  # The same stream of tasks.

    stopped.arguments += ["--rounds", str(rounds)]
    for node in (stopped, straight):
        node.start()
        assert node.process.wait(timeout=280) == 0

    again, ended = newest_checkpoint(stopped.home), newest_checkpoint(straight.home)
    for name in ("weights.safetensors", "optimizer.safetensors"):
        assert (again / name).read_bytes() == (ended / name).read_bytes(), name
    assert json.loads((again / "counters.json").read_bytes()) == json.loads(
        (ended / "counters.json").read_bytes()
    )
    assert saved_state(again) == saved_state(ended)
    assert stopped.ask("status")["peer_id"] == straight.ask("status")["peer_id"] == before["peer_id"]
    curves = [
        [
            (record.round, record.own_reward, record.loss)
            for record in read_rounds(node.home / "history.sqlite")
        ]
        for node in (stopped, straight)
    ]
    assert curves[0] == curves[1]
    assert [number for number, *_ in curves[0]] == list(range(1, rounds + 1))
    assert f"at round {reached}" in stopped.printed()
    check_turns(straight)
    # Groups that the policy of a checkpoint did not sample would show as a difference to the trainer's.
    assert all((record.sampler_gap or 0.0) < 1e-3 for record in read_rounds(stopped.home / "history.sqlite"))


def check_turns(node: Any) -> None:
    """Trainer and generator were never at work at the same time, and what they waited is shown."""
    rounds = read_rounds(node.home / "history.sqlite")
    assert [record.lag_groups for record in rounds] == [(8,)] * len(rounds)
    for record in rounds:
        assert record.trainer_idle_share is not None
        assert record.generator_idle_share is not None
        # Whenever one works, the other waits.
        assert record.trainer_idle_share + record.generator_idle_share >= 0.99
        assert min(record.trainer_idle_share, record.generator_idle_share) > 0
    status = node.ask("status")
    assert status["groups_per_minute"] > 0
    assert 0 < status["workers"]["trainer"]["idle_share"] < 1
