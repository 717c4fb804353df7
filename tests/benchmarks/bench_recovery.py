"""How long a node takes to come back after SIGKILL to one of its processes, and to end when it is asked to.

    python tests/benchmarks/bench_recovery.py [--repeats 5] [--engine vllm]

A worker is back when its process is new and ready, and the generator when it has the newest weights,
too; p2pd when a peer has accepted a group from the node again. With --engine vllm only the generator is
killed: its own process and vLLM's core, in turn. Prints the shortest, median and longest times, and
the processor time that new workers had used by then: on a machine that others use, it says more.
"""

from __future__ import annotations

import argparse
import atexit
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from swarmd.monitor.control import ControlError, fetch_peers, fetch_status
from swarmd.monitor.status import NodeStatus
from swarmd.paths import Home

LIMITS = {"p2pd": 10.0, "verifier": 2.0, "trainer": 20.0, "generator": 20.0, "vLLM": 60.0, "shutdown": 15.0}
PATIENCE_SECONDS = 1800.0
LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class Times:
    """Of one way to fail, each time."""

    seconds: list[float]
    processor_seconds: list[float] = field(default_factory=list)
    """Of the new process and its children; nothing where it is no worker."""


class Node:
    """A real node."""

    def __init__(self, folder: Path, engine: str, *arguments: str) -> None:
        self.home = Home(folder)
        self._arguments = (*arguments, "--model", "tiny", "--engine", engine, "--set", "model.threads=1")
        self.start()

    def start(self) -> None:
        """Start it; returns when it trains and all its processes are well."""
        with self.home.folder.with_suffix(".out").open("ab") as output:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "swarmd", "start", "--home", self.home.folder, *self._arguments),
                    *("--set", "workers.max_fast_failures=1000"),
                    *("--set", f"workers.start_timeout_seconds={PATIENCE_SECONDS}"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self.wait_for(lambda status: status.round >= 1 and is_well(status))

    def wait_for(self, condition: Callable[[NodeStatus], bool]) -> NodeStatus:
        """The first status that meets the condition."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                status = fetch_status(self.home.control_socket)
            except ControlError:
                status = None
            if status is not None and condition(status):
                return status
            time.sleep(LOOK_SECONDS)
        sys.exit(f"the node in {self.home.folder} did not get there")

    def kill(self) -> None:
        """End it at once, and with it its children."""
        self.process.kill()

    def child(self, name: str) -> psutil.Process | None:
        """A process below it, by name, if there is one now."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return next((child for child in children if name in child.name()), None)

    def stop(self) -> float:
        """Ask it to end. Returns after how many seconds it had."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait()
        if code != 0:
            sys.exit(f"the node in {self.home.folder} ended with exit code {code}")
        return time.monotonic() - began


def main() -> int:
    """Print a line for each process; 1 when a median is above its limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--engine", choices=("transformers", "vllm"), default="transformers")
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        measure = of_vllm if given.engine == "vllm" else of_all
        good = [show(name, found) for name, found in measure(Path(folder), given.repeats)]
    return int(not all(good))


def show(name: str, found: Times) -> bool:
    """Print a line. Returns whether the median is within its limit."""
    limit = LIMITS[name.split()[0]]
    processor = f", {spread(found.processor_seconds)} of processor" if found.processor_seconds else ""
    times = f"{len(found.seconds)} times, load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores"
    print(f"{name:<20} {spread(found.seconds)}{processor}  (limit {limit:g} s; {times})", flush=True)
    return statistics.median(found.seconds) <= limit


def spread(seconds: list[float]) -> str:
    """The median, and from where to where."""
    return f"{statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"


def of_all(folder: Path, repeats: int) -> Iterator[tuple[str, Times]]:
    """With the transformers engine: every process, and the shutdown."""
    node = Node(folder / "node", "transformers", "--listen", "/ip4/127.0.0.1/tcp/0")
    atexit.register(node.kill)
    for name in ("verifier-1", "trainer", "generator"):
        yield name.split("-")[0], to_replace(node, name, repeats)
    address = fetch_status(node.home.control_socket).addresses[0]
    peer = Node(folder / "peer", "transformers", "--listen", "/ip4/127.0.0.1/tcp/0", "--join", address)
    atexit.register(peer.kill)
    yield "p2pd", Times([to_be_heard_again(node, peer) for _ in range(repeats)])
    peer.stop()
    yield "shutdown", to_stop(node, repeats)


def of_vllm(folder: Path, repeats: int) -> Iterator[tuple[str, Times]]:
    """With vLLM: the generator process, and vLLM's own core."""
    node = Node(folder / "node", "vllm", "--isolated", "--device", "cpu")
    atexit.register(node.kill)
    yield "vLLM generator", to_replace(node, "generator", repeats)
    yield "vLLM core", to_replace(node, "generator", repeats, lambda: node.child("EngineCore"))
    yield "shutdown with vLLM", to_stop(node, repeats)


def to_replace(
    node: Node, name: str, repeats: int, victim: Callable[[], psutil.Process] | None = None
) -> Times:
    """From killing a worker, or a process of it, until the next one is ready."""
    times = Times([])
    for _ in range(repeats):
        before = node.wait_for(is_well)
        process = psutil.Process(before.workers[name].pid) if victim is None else victim()
        restarts = before.workers[name].restarts
        began = time.monotonic()
        process.kill()
        after = node.wait_for(lambda now, had=restarts: now.workers[name].restarts > had and is_well(now))
        times.seconds.append(time.monotonic() - began)
        times.processor_seconds.append(processor_seconds(after.workers[name].pid))
        node.wait_for(lambda now, before=before: now.round >= before.round + 2)
    return times


def processor_seconds(pid: int | None) -> float:
    """Used so far by a process and its children."""
    worker = psutil.Process(pid)
    used = [process.cpu_times() for process in (worker, *worker.children(recursive=True))]
    return sum(times.user + times.system for times in used)


def to_stop(node: Node, repeats: int) -> Times:
    """From SIGTERM to a running node until it has ended with exit code 0."""
    seconds = [node.stop()]
    while len(seconds) < repeats:
        node.start()
        seconds.append(node.stop())
    return Times(seconds)


def to_be_heard_again(node: Node, peer: Node) -> float:
    """Seconds from killing p2pd until the peer accepts the next group of the node, from the new one."""
    own = fetch_status(node.home.control_socket).peer_id
    while (killed := node.child("p2pd")) is None:
        time.sleep(LOOK_SECONDS)
    began = time.monotonic()
    killed.kill()
    while node.child("p2pd") in (None, killed):
        time.sleep(LOOK_SECONDS)
    node.wait_for(is_up)
    before = accepted_from(peer, own)  # What the old one sent has been counted by now.
    deadline = began + PATIENCE_SECONDS
    while accepted_from(peer, own) <= before:
        if time.monotonic() > deadline:
            sys.exit("p2pd did not come back")
        time.sleep(LOOK_SECONDS)
    return time.monotonic() - began


def is_up(status: NodeStatus) -> bool:
    """Whether p2pd has been set up again."""
    return not any("p2pd is being restarted" in problem for problem in status.problems)


def accepted_from(node: Node, peer_id: str) -> int:
    """Groups that the node has accepted from a peer."""
    peers = fetch_peers(node.home.control_socket)
    return sum(peer.accepted for peer in peers if peer.peer_id == peer_id)


def is_well(status: NodeStatus) -> bool:
    """Whether all workers are ready, and the generator has weights."""
    workers = status.workers.values()
    return all(one.state == "ready" for one in workers) and status.weights.served_version is not None


if __name__ == "__main__":
    sys.exit(main())
