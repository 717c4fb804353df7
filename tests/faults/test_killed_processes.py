"""Every process of a node is killed, in whatever it does at the time: the node goes on."""

import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(900)]

MakeNode = Callable[..., Any]
Gone = Callable[[list[psutil.Process]], bool]
LISTEN = ("--listen", "/ip4/127.0.0.1/tcp/0")
# Saving after each round, so that a kill often meets a save; and patience for many kills.
BUSY = ("--set", "schedule.checkpoint_every_rounds=1", "--set", "workers.max_fast_failures=1000")


def leftovers(node: Any) -> list[str]:
    """What a node that has ended should not leave: memory, sockets, half a checkpoint."""
    found = [*Path("/dev/shm").glob(f"*swarmd-{node.process.pid}*")]
    found += [path for path in (node.home / "run").glob("*") if path.is_socket()]
    found += (node.home / "checkpoints").glob(".partial-*")
    return [str(path) for path in found]


def process_of(node: Any, role: str) -> psutil.Process | None:
    """The process that has a role now."""
    for child in node.children():
        try:
            words = child.cmdline()
        except psutil.Error:
            continue
        if (role == "p2pd" and child.name() == "p2pd") or f"swarmd.entrypoints.{role}" in words:
            return child
    return None


def wait_for_process(node: Any, role: str, other_than: int | None = None) -> psutil.Process:
    """The next process that has a role, as soon as it exists."""
    while True:
        assert node.process.poll() is None, node.printed()[-2000:]
        found = process_of(node, role)
        if found is not None and found.pid != other_than:
            return found
        time.sleep(0.02)


@pytest.mark.parametrize("role", ["p2pd", "trainer", "generator", "verifier"])
def test_a_killed_process_comes_back_whatever_it_was_doing(
    role: str, make_node: MakeNode, gone: Gone, moments: random.Random, capsys: pytest.CaptureFixture[str]
) -> None:
    node = make_node("home", *LISTEN, *BUSY).start()
    first = node.wait_for_round(2)
    recoveries = []
    for _ in range(4):
        time.sleep(moments.uniform(0.0, 3.0))
        victim = wait_for_process(node, role)
        before = node.ask("status")
        killed_at = time.monotonic()
        victim.kill()
        successor = wait_for_process(node, role, other_than=victim.pid)
        if moments.random() < 0.5:  # Also while it starts.
            time.sleep(moments.uniform(0.0, 1.0))
            successor.kill()
            wait_for_process(node, role, other_than=successor.pid)
        if role == "p2pd":
            node.wait_for(lambda status: status["addresses"] and status["state"] == "training")
        else:
            node.wait_for(lambda status: status["workers"][role]["state"] == "ready")
        recoveries.append(time.monotonic() - killed_at)
        after = node.wait_for_round(before["round"] + 2)
        assert after["peer_id"] == first["peer_id"]
    with capsys.disabled():
        print(f"\n{role}: back after {', '.join(f'{seconds:.1f}' for seconds in recoveries)} s")
    children = node.children()
    code, seconds = node.stop()
    assert (code, seconds < 15) == (0, True)
    assert gone(children)
    assert leftovers(node) == []
    assert "Traceback" not in node.printed()


def test_a_killed_node_starts_again_at_once_and_goes_on(
    make_node: MakeNode, gone: Gone, moments: random.Random
) -> None:
    node = make_node("home", *LISTEN, *BUSY).start()
    peer_id = node.wait_for_round(2)["peer_id"]
    for _ in range(3):
        time.sleep(moments.uniform(0.0, 4.0))
        saved = len(list((node.home / "checkpoints").glob("checkpoint-*")))
        reached = node.ask("status")["round"]
        children = node.children()
        node.stop(signal.SIGKILL)
        node.start()  # While the children of the killed one may still be on their way out.
        assert gone(children)
        status = node.wait_for(lambda status: status["state"] == "training")
        assert saved == 0 or status["round"] >= reached - 2
        assert status["peer_id"] == peer_id
        node.wait_for_round(status["round"] + 1)
    assert node.stop()[0] == 0
    assert leftovers(node) == []


def test_a_trainer_that_is_killed_at_each_start_ends_the_node_with_the_reason(
    make_node: MakeNode, gone: Gone
) -> None:
    node = make_node("home", "--isolated", "--set", "workers.max_fast_failures=3").start()
    last = None
    while node.process.poll() is None:  # As the kernel does where memory is short.
        trainer = process_of(node, "trainer") if psutil.pid_exists(node.process.pid) else None
        if trainer is not None and trainer.pid != last:
            last = trainer.pid
            trainer.kill()
        time.sleep(0.05)
    assert node.process.returncode == 1
    line = node.printed().splitlines()[-1]
    assert line.startswith("swarmd: ")
    assert "trainer" in line
    assert leftovers(node) == []


@pytest.mark.parametrize("role", ["trainer", "generator", "verifier"])
def test_a_worker_that_hangs_is_replaced(role: str, make_node: MakeNode) -> None:
    node = make_node("home", "--isolated", *BUSY, "--set", "workers.heartbeat_timeout_seconds=5").start()
    node.wait_for_round(1)
    hanging = wait_for_process(node, role)
    hanging.suspend()
    status = node.wait_for(lambda status: status["workers"][role]["restarts"] >= 1)
    assert not hanging.is_running() or hanging.status() == psutil.STATUS_ZOMBIE
    node.wait_for_round(status["round"] + 2)
    assert node.stop()[0] == 0
    assert leftovers(node) == []


def test_a_node_that_was_stopped_for_a_while_goes_on_as_it_was(make_node: MakeNode) -> None:
    node = make_node("home", *LISTEN, "--set", "workers.heartbeat_timeout_seconds=5").start()
    before = node.wait_for_round(1)
    node.process.send_signal(signal.SIGSTOP)
    time.sleep(20)  # Longer than any worker may be silent: it is the daemon that did not listen.
    node.process.send_signal(signal.SIGCONT)
    after = node.wait_for_round(before["round"] + 2)
    assert after["state"] == "training"
    assert {name: worker["restarts"] for name, worker in after["workers"].items()} == {
        name: worker["restarts"] for name, worker in before["workers"].items()
    }
    assert node.stop()[0] == 0


def test_of_two_starts_at_once_one_runs_and_one_says_so(make_node: MakeNode) -> None:
    node = make_node("home", "--isolated").start()
    other = subprocess.run(
        [
            *node.command("start"),
            "--model",
            "tiny",
            "--isolated",
            "--engine",
            "transformers",
            "--rounds",
            "1",
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    codes = sorted([other.returncode, 3 if node.process.poll() == 3 else 0])
    assert codes == [0, 3]
    said = other.stderr if other.returncode == 3 else node.printed()
    assert "is in use" in said
    assert "Traceback" not in said
    if other.returncode == 3:
        node.wait_for_round(1)
        assert node.stop()[0] == 0


def test_p2pd_that_starts_slowly_is_waited_for(make_node: MakeNode) -> None:
    node = make_node("home", *LISTEN).start()
    p2pd = wait_for_process(node, "p2pd")
    p2pd.suspend()
    time.sleep(10)
    p2pd.resume()
    status = node.wait_for(lambda status: status["addresses"] != [])
    assert node.wait_for_round(1)["addresses"] == status["addresses"]
    assert node.stop()[0] == 0
