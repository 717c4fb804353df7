"""A real node whose generator is vLLM: it learns, meets each misfortune of vLLM with one clear line, goes on
or ends as fits, and leaves nothing behind.
"""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from swarmd.generation import vllm_traces

StartNode = Callable[..., Any]
TINY = ("--model", "tiny", "--engine", "vllm")

pytestmark = pytest.mark.timeout(1800)


def gone(processes: list[psutil.Process], seconds: float = 300.0) -> bool:
    """Whether all of them end within the time. Processes that import vLLM notice late that they are alone."""
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return all(not process.is_running() or process.status() == psutil.STATUS_ZOMBIE for process in alive)


def is_back(status: Any, restarts: int) -> bool:
    """Whether the generator has been started again so many times, and samples."""
    generator = status["workers"]["generator"]
    return bool(generator["restarts"] == restarts and generator["state"] == "ready")


def named_memory(process: psutil.Process) -> set[str]:
    """Shared memory that the process has open and that others could open too."""
    lines = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
    return {line.split()[5] for line in lines if " /dev/shm/" in line and not line.endswith("(deleted)")}


def test_node_learns_with_vllm_and_outlives_its_processes(start_node: StartNode) -> None:
    node = start_node(*TINY, "--set", "generation.stall_seconds=15")
    running = node.wait_for(lambda status: status["round"] >= 3)
    assert running["policy_version"] > 0
    generator = node.generator()
    assert len(generator) >= 3
    # Each of its processes is in the books.
    pids = {process.pid for process in generator}
    seen = node.wait_for(lambda status: pids <= {found["pid"] for found in status["processes"]})
    assert any(found["name"].startswith("generator/") for found in seen["processes"])
    assert all(found["resident_bytes"] > 0 for found in seen["processes"])
    (channel,) = set.union(*map(named_memory, generator))
    assert channel.startswith(f"/dev/shm/swarmd-{node.process.pid}")

    # It hangs: given up after stall_seconds, and what hangs ends too.
    node.core().send_signal(signal.SIGSTOP)
    assert gone(generator)
    back = node.wait_for(lambda status: is_back(status, restarts=1))
    # More than what waited for the trainer meanwhile.
    goes_on = node.wait_for(lambda status: status["round"] >= back["round"] + 4)
    assert "vLLM made no step for 15 s (generation.stall_seconds)" in node.log("node")

    # A process of it is killed: the rest ends at once, and the node with exit 0 when asked to.
    generator = node.generator()
    node.core().kill()
    assert gone(generator)
    node.wait_for(lambda status: status["workers"]["generator"]["state"] != "ready")
    everything = node.family()
    node.process.send_signal(signal.SIGTERM)
    assert node.process.wait(timeout=60) == 0
    assert "a process of vLLM has ended (killed, or out of memory?)" in node.log("node")
    assert node.status()["round"] >= goes_on["round"]
    assert gone(everything)
    assert node.left() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_node_that_ends_while_vllm_starts_takes_it_along(
    start_node: StartNode, number: signal.Signals
) -> None:
    node = start_node(*TINY)
    deadline = time.monotonic() + 600
    # Until vLLM's processes share memory.
    while not any("vllm" in name for name in node.left()) and time.monotonic() < deadline:
        time.sleep(0.05)
        everything = node.family()
    node.process.send_signal(number)
    assert node.process.wait(timeout=60) == (0 if number == signal.SIGTERM else -number)
    assert gone(everything)
    if number == signal.SIGKILL:
        vllm_traces.remove_leftovers()  # As the next generator does.
    assert not [name for name in node.left() if "vllm" in name]


def test_vllm_that_cannot_start_ends_the_node_with_its_reason(start_node: StartNode) -> None:
    node = start_node(
        *TINY,
        *("--set", "generation.kv_cache_bytes=10000000000000"),
        *("--set", "model.check_memory=false"),  # It would be refused before vLLM is asked.
    )
    everything = node.family()
    while node.process.poll() is None:
        everything = node.family() or everything
        time.sleep(0.2)
    assert node.process.returncode == 1, node.said()
    last = node.printed.read_text().splitlines()[-1]
    assert last.startswith("swarmd: vLLM cannot load the model: ")
    assert "kv cache" in last.lower()
    assert gone(everything)
    assert node.left() == []
