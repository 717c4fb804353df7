"""The weight channel of real nodes after kills of any process. Where shared memory is too small, see
tests/faults.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from node_process import kill_and_wait_for_restarts, kill_hard

pytestmark = pytest.mark.swarm

MakeNode = Callable[..., Any]
QUICK = ("--isolated", "--set", "schedule.eval_every_rounds=0", "--set", "workers.restart_min_seconds=0.1")


def segments_of(pid: int) -> list[Path]:
    return list(Path("/dev/shm").glob(f"*swarmd-{pid}*"))


def test_segments_of_killed_processes_are_taken_over_or_removed(
    make_node: MakeNode, gone: Callable[[list[psutil.Process]], bool]
) -> None:
    node = make_node("home", *QUICK, "--set", "schedule.checkpoint_every_rounds=1").start()
    status = node.wait_for_round(2)
    assert status["weights"]["channel"] == "shared_memory"
    segments = segments_of(node.process.pid)
    assert len(segments) == 1
    described = subprocess.run(node.command("status"), capture_output=True, text=True, check=True).stdout
    assert "by shared_memory" in described
    kill_and_wait_for_restarts(node, "trainer", "generator")
    assert segments_of(node.process.pid) == segments
    assert gone(kill_hard(node))

    # Any node that starts removes it now, also one that must refuse its checkpoint.
    done = subprocess.run(
        [*node.command("start"), *QUICK, "--engine", "transformers", "--set", "training.lora_rank=4"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("swarmd: ")
    assert "the shapes do not match: tensor" in last
    assert "move the folder away" in last
    assert "Traceback" not in done.stderr
    assert segments_of(node.process.pid) == []
