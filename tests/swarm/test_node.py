"""One real node, alone: it learns, stops in order, resumes, survives its workers and leaves nothing."""

import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from node_process import kill_and_wait_for_restarts

from swarmd.monitor.history import read_rounds

pytestmark = pytest.mark.swarm

MakeNode = Callable[..., Any]


def shared_memory_of(pid: int) -> list[Path]:
    return list(Path("/dev/shm").glob(f"*swarmd-{pid}*"))


def test_a_node_alone_runs_its_rounds_saves_plots_and_exits_0(make_node: MakeNode) -> None:
    node = make_node("home", "--isolated", "--rounds", "3").start()
    assert node.process.wait(timeout=180) == 0
    printed = node.printed()
    assert "round 3/3" in printed
    # Longer than a terminal is wide, and whole nevertheless.
    assert re.search(rf"plot +{re.escape(str(node.home / 'reward.png'))}\n", printed)
    assert "Traceback" not in printed
    assert (node.home / "reward.png").read_bytes().startswith(b"\x89PNG")
    status = node.ask("status")
    assert (status["state"], status["round"], status["is_isolated"]) == ("stopped", 3, True)
    training, last = status["training"], read_rounds(node.home / "history.sqlite")[-1]
    assert sum(training["lag_groups"]) == 8
    assert 0 < training["effective_share"] <= 1
    assert training["sampler_kl"] >= 0
    assert list(last.lag_groups) == training["lag_groups"]
    for name in ("effective_share", "sampler_kl", "sampler_gap", "learning_rate"):
        assert getattr(last, name) == training[name]
    assert shared_memory_of(node.process.pid) == []


def test_sigkill_takes_all_processes_along_and_the_next_start_works(
    make_node: MakeNode, gone: Callable[[list[psutil.Process]], bool]
) -> None:
    node = make_node("home", "--isolated").start()
    node.wait_for_round(1)
    children = node.children()
    killed = node.process.pid
    assert shared_memory_of(killed)
    node.stop(signal.SIGKILL)
    assert gone(children)
    node.arguments = ["--isolated", "--rounds", "1"]
    node.start()
    assert node.process.wait(timeout=180) == 0
    assert shared_memory_of(killed) == []


def test_killed_workers_are_restarted_with_the_newest_weights_and_rounds_go_on(make_node: MakeNode) -> None:
    settings = ("schedule.checkpoint_every_rounds=1", "workers.restart_min_seconds=0.1")
    assignments = [word for setting in settings for word in ("--set", setting)]
    node = make_node("home", "--isolated", *assignments).start()
    before = node.wait_for_round(1)
    assert before["weights"]["channel"] == "shared_memory"
    segments = shared_memory_of(node.process.pid)
    assert len(segments) == 1
    for killed in (("generator", "verifier-1"), ("trainer", "generator")):
        after = kill_and_wait_for_restarts(node, *killed)
        for name in killed:
            assert after["workers"][name]["pid"] != before["workers"][name]["pid"]
        assert after["peer_id"] == before["peer_id"]
        # The new trainer took the segment of the dead one over.
        assert shared_memory_of(node.process.pid) == segments
    described = subprocess.run(node.command("status"), capture_output=True, text=True, check=True).stdout
    assert "by shared_memory" in described
    assert node.stop()[0] == 0
    assert "Traceback" not in node.printed()


def test_a_worker_that_always_fails_ends_the_node_with_exit_1_and_one_line(make_node: MakeNode) -> None:
    node = make_node("home", "--isolated", "--set", "workers.max_fast_failures=2").start()
    status = node.wait_for_round(1)
    seen: set[int] = set()
    while node.process.poll() is None:
        pid = status["workers"]["generator"]["pid"]
        if pid and pid not in seen:
            seen.add(pid)
            psutil.Process(pid).kill()
        status = node.ask("status") or status
    assert node.process.returncode == 1
    last = node.printed().strip().splitlines()[-1]
    assert last.startswith("swarmd: generator worker failed 2 times")
    assert "Traceback" not in node.printed()


def test_a_running_node_stays_within_bounds_refuses_a_second_start_and_heeds_stop(
    make_node: MakeNode,
) -> None:
    node = make_node("home", "--isolated").start()
    status = node.wait_for_round(2)
    assert status["loop_lag_max_ms"] > 0
    assert 0 < status["resident_bytes"] < 350_000_000
    assert psutil.Process(node.process.pid).memory_info().rss < 350_000_000

    second = subprocess.run(node.command("start", "--isolated"), capture_output=True, text=True, timeout=60)
    assert second.returncode == 3
    assert "in use" in second.stderr
    node.wait_for_round(status["round"] + 1)

    assert subprocess.run(node.command("stop"), capture_output=True, timeout=60).returncode == 0
    assert node.process.wait(timeout=30) == 0
    assert node.ask("status")["state"] == "stopped"
