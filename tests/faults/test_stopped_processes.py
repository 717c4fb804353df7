"""Processes that are stopped for a minute (SIGSTOP), as a debugger, a full machine or a closed lid do it."""

import signal
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from node_faults import LISTEN, accepted, is_well, leftovers, process_of, wait_for_process, wait_until

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(900)]

MakeNode = Callable[..., Any]
IMPATIENT = ("--set", "workers.heartbeat_timeout_seconds=5")
MINUTE = 60.0


@pytest.mark.parametrize("role", ["p2pd", "trainer", "generator", "verifier"])
def test_a_process_that_hangs_is_replaced(role: str, make_node: MakeNode) -> None:
    node = make_node("home", *LISTEN, *IMPATIENT).start()
    node.wait_for(is_well)
    hanging = wait_for_process(node, role)
    hanging.suspend()
    began = time.monotonic()
    wait_until(lambda: not hanging.is_running() or hanging.status() == psutil.STATUS_ZOMBIE, seconds=MINUTE)
    print(f"{role}: ended {time.monotonic() - began:.1f} s after it was stopped")
    status = node.wait_for(is_well)
    node.wait_for_round(status["round"] + 2)
    assert node.stop()[0] == 0
    assert leftovers(node, {node.process.pid}) == []


def test_a_process_that_hangs_for_less_is_waited_for(make_node: MakeNode) -> None:
    node = make_node("home", *LISTEN).start()
    before = node.wait_for(is_well)
    for role in ("trainer", "generator", "verifier"):
        hanging = process_of(node, role)
        hanging.suspend()
        time.sleep(3)
        hanging.resume()
    after = node.wait_for_round(before["round"] + 2)
    assert restarts(after) == restarts(before)
    assert node.stop()[0] == 0


def test_a_daemon_that_is_stopped_for_a_minute_goes_on_with_the_same_processes(make_node: MakeNode) -> None:
    node = make_node("home", *LISTEN, *IMPATIENT, "--set", "rewards.timeout_seconds=2").start()
    before = node.wait_for(is_well)
    p2pd = process_of(node, "p2pd")
    node.process.send_signal(signal.SIGSTOP)
    time.sleep(MINUTE)  # Longer than anybody may be silent: it is the daemon that did not listen.
    node.process.send_signal(signal.SIGCONT)
    after = node.wait_for(lambda status: is_well(status) and status["round"] >= before["round"] + 2)
    assert restarts(after) == restarts(before)
    assert process_of(node, "p2pd") == p2pd
    assert node.stop()[0] == 0


def test_a_peer_that_is_stopped_for_a_minute_holds_up_nobody_and_is_heard_again(make_node: MakeNode) -> None:
    steady = make_node("steady", *LISTEN).start()
    address = steady.wait_for(lambda status: status["addresses"])["addresses"][0]
    stopped = make_node("stopped", *LISTEN, *IMPATIENT, "--join", address).start()
    nodes = (steady, stopped)
    wait_until(lambda: all(accepted(node) > 2 for node in nodes))

    family = [psutil.Process(stopped.process.pid), *stopped.children()]
    before = restarts(stopped.ask("status"))
    for process in family:
        process.suspend()
    number = steady.ask("status")["round"]
    time.sleep(MINUTE)
    assert steady.wait_for(is_well)["round"] >= number + 3
    had = [accepted(steady)]
    for process in reversed(family):
        process.resume()
    had.append(accepted(stopped))
    wait_until(lambda: all(accepted(node) > count + 2 for node, count in zip(nodes, had, strict=True)))
    assert restarts(stopped.ask("status")) == before
    for node in nodes:
        assert node.stop()[0] == 0
        assert "Traceback" not in node.printed()


def restarts(status: dict[str, Any]) -> dict[str, int]:
    return {name: worker["restarts"] for name, worker in status["workers"].items()}
