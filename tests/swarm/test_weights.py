"""The weight channel of real nodes: where shared memory is too small, and after kills of any process."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.swarm

MakeNode = Callable[..., Any]
QUICK = ("--isolated", "--set", "schedule.eval_every_rounds=0", "--set", "workers.restart_min_seconds=0.1")
SMALL = "mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "


def segments_of(pid: int) -> list[Path]:
    return list(Path("/dev/shm").glob(f"*swarmd-{pid}*"))


def in_a_small_dev_shm(command: list[str]) -> list[str]:
    """The command where /dev/shm has one megabyte, for it and its children alone."""
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    return [*unshare, "sh", "-c", f'{SMALL} "$@"', "sh", *command]


def can_unshare() -> bool:
    if not shutil.which("unshare"):
        return False
    return subprocess.run(in_a_small_dev_shm(["true"]), capture_output=True, check=False).returncode == 0


def kill_and_wait_for_restarts(node: Any, *names: str) -> dict[str, Any]:
    status = node.ask("status")
    for name in names:
        psutil.Process(status["workers"][name]["pid"]).kill()
    return dict(
        node.wait_for(
            lambda now: (
                all(now["workers"][name]["restarts"] > status["workers"][name]["restarts"] for name in names)
                and all(worker["state"] == "ready" for worker in now["workers"].values())
                and now["weights"]["served_version"] == now["policy_version"] > 0
                and now["round"] >= status["round"] + 2
            )
        )
    )


def kill(node: Any, gone: Callable[[list[psutil.Process]], bool]) -> None:
    children = node.children()
    node.process.send_signal(signal.SIGKILL)
    node.process.wait()
    assert gone(children)


@pytest.mark.skipif(
    not can_unshare(), reason="this machine lets nobody mount: test_channel has the choice alone"
)
def test_a_node_with_a_small_dev_shm_learns_through_a_file_that_outlives_kills(
    make_node: MakeNode, gone: Callable[[list[psutil.Process]], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_node("home", *QUICK)
    usual = node.command
    with monkeypatch.context() as small:
        small.setattr(node, "command", lambda *words: in_a_small_dev_shm(usual(*words)))
        node.start()
    status = node.wait_for_round(2)
    assert status["weights"]["channel"] == "file"
    assert "shared memory is too small: the weights need" in status["weights"]["reason"]
    assert any("--shm-size" in problem for problem in status["problems"])
    assert "weights go by file: shared memory is too small" in node.printed()
    assert (node.home / "weights" / "file").stat().st_size > 2 * 900_000

    kill_and_wait_for_restarts(node, "trainer", "generator")
    kill(node, gone)
    # What a start that goes another way removes: tests/swarmd/weights/test_channel.py.
    assert (node.home / "weights" / "file").exists()


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
    kill(node, gone)

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
