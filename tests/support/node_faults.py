"""What tests of faults ask of a node: which process is which, whether all is well, and what was left."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from node_process import NodeProcess

LISTEN = ("--listen", "/ip4/127.0.0.1/tcp/0")
MANY_KILLS = ("--set", "workers.max_fast_failures=1000")


def process_of(node: NodeProcess, role: str) -> psutil.Process | None:
    """The process that is p2pd, trainer, generator or verifier now, or is starting as it."""
    if node.process.poll() is not None:
        return None
    for child in node.children():
        try:
            words = child.cmdline()
            if child.name() == role or any(word.endswith((f".{role}", f"_{role}")) for word in words):
                return child
        except psutil.Error:
            continue
    return None


def wait_for_process(node: NodeProcess, role: str, other_than: int | None = None) -> psutil.Process:
    """The next process that has a role, as soon as it exists."""
    while True:
        assert node.process.poll() is None, node.printed()[-2000:]
        found = process_of(node, role)
        if found is not None and found.pid != other_than:
            return found
        time.sleep(0.02)


def is_well(status: dict[str, Any]) -> bool:
    """Whether everything runs, and the generator has the newest weights."""
    return (
        status["state"] in ("training", "waiting")
        and all(worker["state"] == "ready" for worker in status["workers"].values())
        and status["weights"]["served_version"] is not None
        and "p2pd is being restarted" not in status["problems"]
        and bool(status["addresses"] or status["is_isolated"])
    )


def leftovers(node: NodeProcess, pids: set[int], temporary: Path | None = None) -> list[str]:
    """What a node that has ended should not leave: memory, sockets, half a checkpoint, temporary files.

    `pids` are those that its daemon had, from start to start; `temporary` is the folder it was given.
    """
    found = [path for pid in pids for path in Path("/dev/shm").glob(f"*swarmd-{pid}*")]
    found += [path for path in (node.home / "run").glob("*") if path.is_socket()]
    found += [*(node.home / "checkpoints").glob(".partial-*"), *(node.home / "weights").glob("*")]
    # One cache of each user is torch's.
    found += [path for path in temporary.iterdir() if "torchinductor" not in path.name] if temporary else ()
    return [str(path) for path in found]


def wait_until(condition: Callable[[], bool], seconds: float = 120.0, every: float = 0.5) -> None:
    """Return once the condition holds. Fails when time is up."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(every)


def accepted(node: NodeProcess) -> int:
    """Groups that a node has accepted from its peers."""
    return sum(peer["accepted"] for peer in node.ask("peers") or ())
