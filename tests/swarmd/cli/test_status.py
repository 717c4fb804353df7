"""`swarmd status` of a running node, of a stopped one, and of a home without any."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import pytest

from swarmd.cli.app import run_command_line
from swarmd.cli.status import Required, _require, describe
from swarmd.errors import SwarmdError
from swarmd.monitor.status import (
    CanaryStatus,
    ClockStatus,
    NodeStatus,
    ProcessStatus,
    TrainingStatus,
    WorkerStatus,
)
from swarmd.paths import Home

StartNode = Callable[[str], "Popen[str]"]


def test_running_node_is_shown_with_what_it_waits_for(
    node: StartNode, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    node("answers")
    assert run_command_line(["status", "--home", str(home.folder)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "state training, trainer waits for 2 more rollout groups" in shown
    assert "round 60 of 100" in shown
    assert "external share 25% of" in shown
    assert "up 1 h 1 min" in shown
    assert "bootstrap /ip4/10.0.0.9/tcp/1: not reachable (refused) for 1 min 5 s" in shown


def test_json_keeps_the_contract(node: StartNode, home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    node("answers")
    assert run_command_line(["status", "--json", "--home", str(home.folder)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["state"] == "training"
    contract = (
        "peer_id swarm swarm_id model state round policy_version uptime_seconds addresses peers reward "
        "buffer workers versions"
    )
    assert set(contract.split()) <= set(shown)
    assert set(shown["reward"]) >= {"local_mean", "external_mean", "eval"}
    assert set(shown["buffer"]) >= {"local", "external", "bytes", "rejected"}


def test_a_health_check_fails_unless_the_node_does_what_is_required(
    node: StartNode, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    node("answers")
    for required in ("running", "training"):
        assert run_command_line(["status", "--require", required, "--home", str(home.folder)]) == 0
    assert run_command_line(["stop", "--home", str(home.folder)]) == 0
    for required in ("running", "training"):
        assert run_command_line(["status", "--require", required, "--home", str(home.folder)]) == 1
        assert f"is not {required}: it is stopped" in capsys.readouterr().err


def test_a_node_that_starts_runs_and_does_not_train_yet() -> None:
    _require(Required.RUNNING, "starting", Home(Path("home")))
    with pytest.raises(SwarmdError, match="not training: it is starting"):
        _require(Required.TRAINING, "starting", Home(Path("home")))


def test_stopped_node_shows_its_last_known_state(
    node: StartNode, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    node("answers")
    assert run_command_line(["stop", "--home", str(home.folder)]) == 0
    capsys.readouterr()
    assert run_command_line(["status", "--json", "--home", str(home.folder)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["state"] == "stopped"
    assert shown["round"] == 60


def test_home_without_a_node_is_stopped_too(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["status", "--json", "--home", str(home.folder)]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "stopped"
    assert run_command_line(["status", "--home", str(home.folder)]) == 0
    assert "no node has run in" in capsys.readouterr().out
    assert not home.folder.exists()


def test_speed_and_idle_workers_stand_in_their_rows() -> None:
    workers = {
        "trainer": WorkerStatus(pid=1, state="ready", idle_share=0.124),
        "verifier-1": WorkerStatus(pid=2, state="ready"),
    }
    status = NodeStatus(
        peer_id="p",
        swarm="tiny",
        swarm_id="0" * 64,
        model="tiny",
        state="training",
        trained_groups=480,
        groups_per_minute=218.4,
        workers=workers,
    )
    rows = dict(re.split(r"  +", line, maxsplit=1) for line in describe(status).splitlines())
    assert rows["groups"] == "480 trained on, 218 a minute"
    assert rows["worker trainer"] == "ready, idle 12% of the last minute, 0 restarts"
    assert rows["worker verifier-1"] == "ready, 0 restarts"


@pytest.mark.parametrize(
    ("canary", "shown"),
    [
        (CanaryStatus(), "off"),
        (CanaryStatus(state="waiting"), "not compared yet"),
        (
            CanaryStatus(state="good", version=40, difference=3.2e-6, tolerance=1e-3, checked_at=0.0),
            "good, 3.2e-06 nats off (tolerance 0.001) at version 40, ",
        ),
        (
            CanaryStatus(state="bad", version=3, tolerance=0.05, checked_at=0.0, failures=2),
            "bad, not finite (tolerance 0.05) at version 3, ",
        ),
    ],
)
def test_the_canary_is_one_row(canary: CanaryStatus, shown: str) -> None:
    status = NodeStatus(
        peer_id="p", swarm="tiny", swarm_id="0" * 64, model="tiny", state="training", canary=canary
    )
    (row,) = [line for line in describe(status).splitlines() if line.startswith("canary")]
    text = row.split(maxsplit=1)[1]
    assert text.startswith(shown)
    assert text.endswith("failed 2 times") is (canary.failures == 2)


def test_how_far_off_policy_training_is_stands_in_one_row() -> None:
    training = TrainingStatus(
        sampler_kl=0.00214, effective_share=0.974, clipped_share=0.0125, lag_groups=(3, 0, 1)
    )
    status = NodeStatus(
        peer_id="p", swarm="tiny", swarm_id="0" * 64, model="tiny", state="training", training=training
    )
    (row,) = [line for line in describe(status).splitlines() if line.startswith("off-policy")]
    assert row.split(maxsplit=1)[1] == (
        "KL 0.0021 nats a token, effective sample 97%, clipped 1.2%, own groups 3 of lag 0, 1 of lag 2"
    )


def test_each_worker_is_shown_with_its_place_the_reason_and_its_memory() -> None:
    workers = {
        "trainer": WorkerStatus(
            pid=1,
            state="ready",
            device="cuda:0",
            dtype="bfloat16",
            why="one GPU for both",
            estimated_bytes=9_300_000_000,
        ),
        "verifier-1": WorkerStatus(pid=2, state="ready"),
    }
    status = NodeStatus(peer_id="", swarm="", swarm_id="", model="", state="training", workers=workers)
    trainer, verifier = [line for line in describe(status).splitlines() if line.startswith("worker ")]
    assert "cuda:0 in bfloat16, about 9.3 GB (one GPU for both)" in trainer
    assert verifier.endswith("0 restarts")


def test_memory_of_processes_and_the_clock_against_peers_are_one_row_each() -> None:
    status = NodeStatus(
        peer_id="p",
        swarm="s",
        swarm_id="i",
        model="m",
        state="training",
        processes=(
            ProcessStatus("daemon", 1, 180_000_000, 40, 9),
            ProcessStatus("generator", 2, 1_500_000_000, 30, 8),
            ProcessStatus("generator/VLLM::EngineCore", 3, 2_000_000_000, 30, 8),
        ),
        clock=ClockStatus(skew_seconds=-42.04, peers=3),
    )
    rows = dict(re.split(r"  +", line, maxsplit=1) for line in describe(status).splitlines())
    assert rows["memory"] == "daemon 0.18 GB, generator 3.5 GB"
    assert rows["clock"] == "42.0 s behind 3 peers"
