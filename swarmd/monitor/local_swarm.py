"""A swarm on one machine, for trying swarmd: starts several real nodes, watches them, stops them, and
says at the end what each of them learned and from whom.

The nodes are ordinary `swarmd start` processes with homes of their own. They are asked through their
control sockets like any other node, and they end when this process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from swarmd.errors import SwarmdError
from swarmd.identity import Identity
from swarmd.monitor.control import ControlError, fetch_peers, fetch_status
from swarmd.monitor.history import RoundRecord, read_rounds
from swarmd.monitor.status import NodeStatus, PeerStatus, load_last_known
from swarmd.paths import Home

LOOK_SECONDS = 1.0
STOP_SECONDS = 20.0
_ASK_SECONDS = 2.0

# Runs `swarmd start` in a process that the kernel ends with this one.
_NODE_PROGRAM = (
    "import runpy, sys; from swarmd.workers.process import die_with_parent; "
    "die_with_parent(int(sys.argv.pop(1))); runpy.run_module('swarmd', run_name='__main__', alter_sys=True)"
)


@dataclass(frozen=True)
class Plan:
    """What to start."""

    folder: Path
    """Empty or absent. Gets a home for each node, and the plot."""
    nodes: int
    rounds: int
    seed: int
    model: str
    settings: tuple[str, ...] = ()
    """Further `section.key=value` settings of every node."""
    config: Path | None = None
    """A configuration file of every node."""


@dataclass(frozen=True)
class NodeView:
    """A node as seen from outside."""

    name: str
    status: NodeStatus | None
    """None until it has answered for the first time."""
    peers: tuple[PeerStatus, ...]
    exit_code: int | None
    """None while it runs."""
    last_words: str
    """Last line it printed."""

    @property
    def has_failed(self) -> bool:
        """Whether it ended and should not have."""
        return self.exit_code not in (None, 0)


def next_run_folder(base: Path) -> Path:
    """`run-1`, `run-2`, ... below `base`: the first that is not there yet."""
    number = 1
    while (base / f"run-{number}").exists():
        number += 1
    return base / f"run-{number}"


class LocalSwarm:
    """The running nodes of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.started_at = time.monotonic()
        self.stopping = False
        self._nodes: list[_Node] = []

    @property
    def plot(self) -> Path:
        """Where the plot of all nodes goes."""
        return self.plan.folder / "reward.png"

    def histories(self) -> dict[str, Path]:
        """History file of each node, by its name."""
        return {node.name: node.home.history for node in self._nodes}

    def rounds(self) -> dict[str, tuple[RoundRecord, ...]]:
        """Rounds of each node, by its name; none for a node whose history cannot be read."""
        found: dict[str, tuple[RoundRecord, ...]] = {}
        for name, path in self.histories().items():
            try:
                found[name] = read_rounds(path)
            except sqlite3.Error:
                found[name] = ()
        return found

    def run(self, on_look: Callable[[Sequence[NodeView]], None]) -> tuple[NodeView, ...]:
        """Start the nodes, look at them until all have ended, and return how they ended.

        Ctrl-C and SIGTERM stop the nodes in order; a second one ends them at once. Raises SwarmdError
        when a node cannot be started at all.
        """
        with self._signals():
            try:
                self._start()
                self._watch(on_look)
            finally:
                for node in self._nodes:
                    node.process.kill()
                    node.process.wait()
                    node.output.close()
        return tuple(node.look() for node in self._nodes)

    def _start(self) -> None:
        plan, ports = self.plan, free_ports(self.plan.nodes)
        homes = [Home(plan.folder / f"node-{number}") for number in range(1, plan.nodes + 1)]
        for home in homes:
            home.prepare()
        first = Identity.load_or_create(homes[0].identity_key).peer_id
        places = gpu_environments(plan.nodes, visible_gpus())
        for number, (home, port) in enumerate(zip(homes, ports, strict=True), 1):
            join = ["--join", f"/ip4/127.0.0.1/tcp/{ports[0]}/p2p/{first}"] if number > 1 else []
            arguments = self._arguments(number, home, port) + join
            self._nodes.append(_Node(f"node-{number}", home, arguments, places[number - 1]))

    def _arguments(self, number: int, home: Home, port: int) -> list[str]:
        plan = self.plan
        arguments = ["start", "--home", str(home.folder), "--model", plan.model]
        arguments += ["--rounds", str(plan.rounds), "--seed", str(plan.seed)]
        arguments += ["--listen", f"/ip4/127.0.0.1/tcp/{port}"]
        arguments += ["--config", str(plan.config)] if plan.config else []
        # The nodes share the cores of this machine: one thread each where there are few.
        threads = max(1, (os.cpu_count() or 1) // (2 * plan.nodes))
        own = (f"node.name=node-{number}", f"model.threads={threads}")
        # Several vLLMs would start for minutes where the small model needs seconds. A configuration decides.
        engine = () if plan.config else ("generation.engine=transformers",)
        for setting in (*own, *engine, *plan.settings):
            arguments += ["--set", setting]
        return arguments

    def _watch(self, on_look: Callable[[Sequence[NodeView]], None]) -> None:
        deadline = float("inf")
        while any(node.process.poll() is None for node in self._nodes):
            on_look([node.look() for node in self._nodes])
            if self.stopping:
                deadline = min(deadline, time.monotonic() + STOP_SECONDS)
            if time.monotonic() > deadline:
                return
            time.sleep(LOOK_SECONDS)
        on_look([node.look() for node in self._nodes])

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        before = {
            number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        again, self.stopping = self.stopping, True
        for node in self._nodes:
            node.process.send_signal(signal.SIGKILL if again else signal.SIGTERM)


class _Node:
    """One node process, and what was last seen of it."""

    def __init__(self, name: str, home: Home, arguments: list[str], environment: dict[str, str]) -> None:
        self.name = name
        self.home = home
        self.output_path = home.folder / "output.log"
        self.output = self.output_path.open("wb")
        self._status: NodeStatus | None = None
        self._peers: tuple[PeerStatus, ...] = ()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _NODE_PROGRAM, str(os.getpid()), *arguments],
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=self.output,
                stderr=subprocess.STDOUT,
                # Ctrl-C in the terminal is for us: we pass it on.
                start_new_session=True,
            )
        except OSError as error:
            raise SwarmdError(f"{name} could not be started: {error}") from error

    def look(self) -> NodeView:
        """Ask the node; what cannot be asked is as it was."""
        exit_code = self.process.poll()
        if exit_code is None:
            with contextlib.suppress(ControlError):
                self._status = fetch_status(self.home.control_socket, _ASK_SECONDS)
                self._peers = fetch_peers(self.home.control_socket, _ASK_SECONDS)
        elif last_known := load_last_known(self.home.status_file):
            self._status, self._peers = last_known.status, last_known.peers
        return NodeView(self.name, self._status, self._peers, exit_code, self._last_words())

    def _last_words(self) -> str:
        with self.output_path.open("rb") as file:
            file.seek(max(0, self.output_path.stat().st_size - 2000))
            lines = file.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""


def visible_gpus(drivers: Path = Path("/proc/driver/nvidia/gpus")) -> tuple[str, ...]:
    """The GPUs that a process started now would see, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return tuple(filter(None, named.split(",")))
    try:
        return tuple(str(number) for number, _ in enumerate(drivers.iterdir()))
    except OSError:
        return ()


def gpu_environments(nodes: int, gpus: Sequence[str]) -> list[dict[str, str]]:
    """What each node has in its environment beside ours: where there are several GPUs, one of its own, or
    in turn where there are fewer than nodes. A single node has all of them.
    """
    if nodes == 1 or len(gpus) < 2:
        return [{}] * nodes
    return [{"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} for number in range(nodes)]


def free_ports(count: int) -> list[int]:
    """TCP ports of the loopback address that nobody has at this moment, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [int(listener.getsockname()[1]) for listener in sockets]
