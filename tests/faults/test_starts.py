"""Starts that go wrong: at each try, twice at once, or slowly."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from node_faults import LISTEN, leftovers, process_of, wait_for_process

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(900)]

MakeNode = Callable[..., Any]
MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")
"""Of cgroups in version 1; version 2 has them in the folder above."""
CAP_BYTES = 150_000_000


@pytest.fixture
def memory_cap() -> Iterator[Callable[[psutil.Process], None]]:
    """Has the kernel end a process that takes more than CAP_BYTES."""
    is_old = MEMORY_GROUPS.is_dir()
    group = (MEMORY_GROUPS if is_old else MEMORY_GROUPS.parent) / f"swarmd-faults-{os.getpid()}"
    group.mkdir()
    limit = "memory.limit_in_bytes" if is_old else "memory.max"
    (group / limit).write_text(str(CAP_BYTES))

    def cap(process: psutil.Process) -> None:
        (group / "cgroup.procs").write_text(str(process.pid))

    yield cap
    group.rmdir()


def test_a_trainer_that_finds_too_little_memory_at_each_start_ends_the_node_with_the_reason(
    make_node: MakeNode, memory_cap: Callable[[psutil.Process], None]
) -> None:
    # So far apart that time alone would forgive them.
    patience = ("--set", "workers.max_fast_failures=3", "--set", "workers.failure_window_seconds=0.01")
    node = make_node("home", *LISTEN, *patience).start()
    capped = set()
    while node.process.poll() is None:
        trainer = process_of(node, "trainer")
        if trainer is not None and trainer not in capped:
            capped.add(trainer)
            memory_cap(trainer)
        time.sleep(0.02)
    assert node.process.returncode == 1
    assert len(capped) == 3
    line = node.printed().splitlines()[-1]
    assert line.startswith("swarmd: trainer worker failed 3 times")
    assert "was killed by SIGKILL (out of memory?)" in line
    assert "Traceback" not in node.printed()
    assert leftovers(node, {node.process.pid}) == []


def test_of_two_starts_in_the_same_second_one_runs_and_one_says_so(make_node: MakeNode) -> None:
    first, second = make_node("home", "--isolated", "--rounds", "2"), make_node("home", "--isolated")
    second.home = first.home.parent / "link"
    second.home.symlink_to(first.home)  # The same place by another name, and with an output of its own.
    first.home.mkdir()
    second.arguments = first.arguments
    for node in (first, second):
        node.start()
    codes = {node.process.wait(timeout=300): node for node in (first, second)}
    assert sorted(codes) == [0, 3]
    refused = codes[3].printed()
    assert refused.splitlines()[-1].startswith("swarmd: home ")
    assert "is in use by the node with process id" in refused
    assert "Traceback" not in refused
    assert "round 2/2" in codes[0].printed()
    assert leftovers(codes[0], {first.process.pid, second.process.pid}) == []


def test_p2pd_that_starts_slowly_is_waited_for(make_node: MakeNode) -> None:
    node = make_node("home", *LISTEN).start()
    p2pd = wait_for_process(node, "p2pd")
    p2pd.suspend()
    time.sleep(20)
    assert node.process.poll() is None
    p2pd.resume()
    status = node.wait_for(lambda status: status["addresses"] != [])
    assert node.wait_for_round(1)["addresses"] == status["addresses"]
    assert process_of(node, "p2pd") == p2pd
    assert node.stop()[0] == 0


def test_leftovers_of_a_killed_node_are_gone_after_the_next_start(make_node: MakeNode) -> None:
    node = make_node("home", "--isolated").start()
    node.wait_for_round(1)
    node.process.kill()
    node.process.wait()
    pid = node.process.pid
    (node.home / "checkpoints" / f".partial-{pid}-7").mkdir()
    assert leftovers(node, {pid})  # Nobody was there to remove them.
    done = subprocess.run(
        [*node.command("start"), "--model", "tiny", "--isolated", "--rounds", "1"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=300,
        check=True,
    )
    assert b"Traceback" not in done.stderr
    assert leftovers(node, {pid}) == []
