"""Where /dev/shm has one megabyte, as in a container: weights go by file. Needs root, or user namespaces."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from node_process import kill_and_wait_for_restarts, kill_hard

pytestmark = pytest.mark.timeout(900)

MakeNode = Callable[..., Any]
QUICK = ("--isolated", "--set", "schedule.eval_every_rounds=0", "--set", "workers.restart_min_seconds=0.1")
IN_A_SMALL_DEV_SHM = [
    *("unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])),
    *("sh", "-c", 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"', "sh"),
]

# What a trainer meets in a container whose shared memory is small. Says what was chosen, and reads it back.
SMALL = """
import os, sys
from pathlib import Path
import torch
from swarmd.weights import channel
tensors = {"w": torch.ones(300_000)}
opened = channel.create("auto", "swarmd-small", Path(sys.argv[1]), tensors, same_gpu=False)
opened.writer.publish(1, tensors)
assert channel.attach(opened.writer.handle).read()[0] == 1
assert not os.listdir("/dev/shm")
print(opened.writer.handle.kind, opened.problem, sep="\\n")
try:
    channel.create("shared_memory", "swarmd-small", Path(sys.argv[1]) / "other", tensors, same_gpu=False)
except Exception as error:
    print(error)
"""


def test_a_small_dev_shm_leads_to_a_file_with_a_line_that_says_what_to_do(tmp_path: Path) -> None:
    done = subprocess.run(
        [*IN_A_SMALL_DEV_SHM, sys.executable, "-c", SMALL, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    kind, problem, refusal = done.stdout.splitlines()
    assert kind == "file"
    assert "shared memory is too small: the weights need 2.4 MB, 1.0 MB are free" in problem
    assert "--shm-size" in problem
    assert refusal in problem


def test_a_node_with_a_small_dev_shm_learns_through_a_file_that_outlives_kills(
    make_node: MakeNode, gone: Callable[[list[psutil.Process]], bool]
) -> None:
    node = make_node("home", *QUICK)
    node.prefix = IN_A_SMALL_DEV_SHM
    node.start()
    status = node.wait_for_round(2)
    assert status["weights"]["channel"] == "file"
    assert "shared memory is too small: the weights need" in status["weights"]["reason"]
    assert any("--shm-size" in problem for problem in status["problems"])
    assert "weights go by file: shared memory is too small" in node.printed()
    assert (node.home / "weights" / "file").stat().st_size > 2 * 900_000

    reached = kill_and_wait_for_restarts(node, "trainer", "generator")["round"]
    subprocess.run(node.command("checkpoint"), check=True, timeout=120)
    assert gone(kill_hard(node))
    # The file may be gone: a trainer can hear of the end of its daemon before it is ended itself.
    node.start()
    assert node.wait_for_round(reached + 1)["weights"]["channel"] == "file"
    assert node.stop()[0] == 0
    assert list((node.home / "weights").iterdir()) == []
