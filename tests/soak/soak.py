"""Hours of a small swarm with churn: three nodes, one of which is killed and started again every minute.

    python tests/soak/soak.py --hours 0.5 --out build/soak

`steady` runs from start to end; `left` and `right` are killed in turn. Every process of every node is
looked at every few seconds. At the end the growth of memory, descriptors, threads and disk is
estimated (Theil and Sen: the median of all slopes, which a few outliers do not move) with its 95 %
interval, after a warm-up. A figure fails when even the lower end of the interval is above its limit.
Writes samples.csv, growth.csv and soak.png; exits with 1 when something failed.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path

import psutil
from scipy.stats import theilslopes

from swarmd.errors import SwarmdError
from swarmd.monitor.control import ControlError, fetch_status
from swarmd.paths import Home

MB = 1e6
LIMITS = {"memory MB": 10.0, "descriptors": 1.0, "threads": 1.0, "disk MB": 50.0}
"""Growth an hour that is still good, for each process (disk: for each home)."""
DAEMON_MEMORY_MB = 1.0
WARM_UP_SHARE = 0.25
START_SECONDS = 300.0


@dataclass
class SoakNode:
    """One node, through all its lives."""

    name: str
    home: Home
    arguments: list[str]
    lives: int = 0
    seen: set[psutil.Process] = field(default_factory=set)
    """All its processes that were ever seen. They know their start: ids are given again."""

    def start(self) -> None:
        """Start it, with what it prints in a file beside its home."""
        self.lives += 1
        with self.home.folder.with_suffix(".out").open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "swarmd", "start", "--home", self.home.folder, *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def roles(self) -> dict[str, psutil.Process]:
        """Its processes that run now, by what they are."""
        found = {}
        try:
            daemon = psutil.Process(self.process.pid)
            for process in (daemon, *daemon.children(recursive=True)):
                role = _role(process)
                if role is not None:
                    found[role] = process
                    self.seen.add(process)
        except psutil.NoSuchProcess:
            pass  # It has just been killed.
        return found

    def round(self) -> int:
        """The round it is in, -1 where it does not answer."""
        try:
            return fetch_status(self.home.control_socket, 2.0).round
        except ControlError:
            return -1


@dataclass(frozen=True)
class Sample:
    """One figure of one process at one time."""

    seconds: float
    node: str
    life: int
    role: str
    figure: str
    value: float


@dataclass(frozen=True)
class Growth:
    """The growth of one figure, an hour."""

    node: str
    role: str
    figure: str
    an_hour: float
    low: float
    high: float
    limit: float

    @property
    def is_good(self) -> bool:
        """Whether the data allow a growth within the limit."""
        return self.low <= self.limit


def main() -> int:
    """Run the soak. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hours", type=float, default=0.5)
    parser.add_argument("--out", type=Path, default=Path("build/soak"))
    parser.add_argument("--kill-every", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--sample-every", type=float, default=5.0, metavar="SECONDS")
    given = parser.parse_args()
    given.out.mkdir(parents=True)
    nodes = make_nodes(given.out)
    samples: list[Sample] = []
    failures: list[str] = []
    try:
        # Keeps what was seen before a failure.
        samples.extend(soak(nodes, given.hours * 3600, given.kill_every, given.sample_every))
    except SwarmdError as error:
        failures.append(str(error))
    finally:
        failures += end(nodes)
    growth = estimate(samples)
    failures += [
        f"{g.node} {g.role}: {g.figure} grows by {g.an_hour:.3g} an hour" for g in growth if not g.is_good
    ]
    write(given.out, samples, growth)
    for g in growth:
        print(
            f"{g.node:7} {g.role:10} {g.figure:12} {g.an_hour:9.3f} an hour "
            f"[{g.low:9.3f}, {g.high:9.3f}]  {'good' if g.is_good else 'TOO MUCH'} (limit {g.limit:g})"
        )
    print(f"lives: {', '.join(f'{node.name} {node.lives}' for node in nodes)}")
    for failure in failures:
        print(f"FAILED: {failure}")
    return 1 if failures else 0


def make_nodes(folder: Path) -> list[SoakNode]:
    """Three nodes that know each other's addresses: `steady` listens, the others join it."""
    common = ["--model", "tiny", "--engine", "transformers", "--set", "model.threads=1"]
    common += ["--set", "schedule.checkpoint_every_rounds=10"]
    homes = {name: Home((folder / name).resolve()) for name in ("steady", "left", "right")}
    made = subprocess.run(
        [sys.executable, "-m", "swarmd", "identity", "new", "--json", "--home", homes["steady"].folder],
        stdout=subprocess.PIPE,
        check=True,
    )
    peer_id = json.loads(made.stdout)["peer_id"]
    port = _free_port()
    join = ["--listen", "/ip4/127.0.0.1/tcp/0", "--join", f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer_id}"]
    return [
        SoakNode("steady", homes["steady"], [*common, "--listen", f"/ip4/127.0.0.1/tcp/{port}"]),
        SoakNode("left", homes["left"], [*common, *join]),
        SoakNode("right", homes["right"], [*common, *join]),
    ]


def soak(nodes: list[SoakNode], seconds: float, kill_every: float, sample_every: float) -> Iterator[Sample]:
    """Run them with churn, and look at their processes. Raises SwarmdError when one does not come up."""
    for node in nodes:
        node.start()
    deadline = time.monotonic() + START_SECONDS
    while any(node.round() < 1 for node in nodes):
        if time.monotonic() > deadline:
            raise SwarmdError(f"a node has not finished a round after {START_SECONDS:g} s")
        time.sleep(1)
    began = time.monotonic()
    next_kill, victims = began + kill_every, nodes[1:]
    while (now := time.monotonic()) < began + seconds:
        for node in nodes:
            if node.process.poll() is not None:
                raise SwarmdError(f"{node.name} ended with {node.process.returncode}")
            yield from look(node, now - began)
        if now > next_kill:
            next_kill += kill_every
            victims.append(victims.pop(0))
            victims[0].process.kill()
            victims[0].process.wait()
            victims[0].start()
        time.sleep(sample_every)


def look(node: SoakNode, seconds: float) -> Iterator[Sample]:
    """All figures of one node, now."""
    for role, process in node.roles().items():
        try:
            with process.oneshot():
                figures = {
                    "memory MB": process.memory_info().rss / MB,
                    "descriptors": float(process.num_fds()),
                    "threads": float(process.num_threads()),
                }
        except psutil.NoSuchProcess:
            continue
        for figure, value in figures.items():
            yield Sample(seconds, node.name, node.lives, role, figure, value)
    size = sum(path.lstat().st_size for path in _files(node.home.folder)) / MB
    yield Sample(seconds, node.name, 0, "home", "disk MB", size)
    yield Sample(seconds, node.name, 0, "home", "round", float(node.round()))


def end(nodes: list[SoakNode]) -> list[str]:
    """Stop them as a user does. Returns what is wrong with their ends."""
    wrong = []
    for node in nodes:
        if node.process.poll() is None:
            node.roles()
            node.process.send_signal(signal.SIGTERM)
    for node in nodes:
        try:
            code = node.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            node.process.kill()
            code = node.process.wait()
        if code != 0:
            wrong.append(f"{node.name} ended with exit code {code}")
        left = [process.pid for process in node.seen if process.is_running() and _role(process) is not None]
        wrong += [f"{node.name} left process {pid}" for pid in left]
        pids = {process.pid for process in node.seen}
        wrong += [
            f"{node.name} left {path}"
            for path in Path("/dev/shm").glob("*swarmd*")
            if any(part.isdigit() and int(part) in pids for part in path.name.replace(".", "-").split("-"))
        ]
    return wrong


def estimate(samples: list[Sample]) -> list[Growth]:
    """The growth of each figure of each process that lived throughout, and of each home."""
    seconds = max((sample.seconds for sample in samples), default=0.0)
    series: dict[tuple[str, str, str], list[tuple[float, float]]] = defaultdict(list)
    for sample in samples:
        lives_on = sample.node == "steady" or sample.role == "home"
        if lives_on and sample.figure in LIMITS and sample.seconds > WARM_UP_SHARE * seconds:
            series[sample.node, sample.role, sample.figure].append((sample.seconds / 3600, sample.value))
    found = []
    for (node, role, figure), points in series.items():
        hours, values = zip(*_thinned(points), strict=True)
        slope, _, low, high = theilslopes(values, hours)
        is_daemon_memory = role == "daemon" and figure == "memory MB"
        limit = DAEMON_MEMORY_MB if is_daemon_memory else LIMITS[figure]
        found.append(Growth(node, role, figure, float(slope), float(low), float(high), limit))
    return found


def write(folder: Path, samples: list[Sample], growth: list[Growth]) -> None:
    """The tables and the plot."""
    for name, kind, rows in (("samples", Sample, samples), ("growth", Growth, growth)):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            table = csv.DictWriter(file, [column.name for column in fields(kind)])
            table.writeheader()
            table.writerows(vars(row) for row in rows)
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figures = [*LIMITS, "round"]
    figure, axes = plt.subplots(len(figures), 1, figsize=(10, 3 * len(figures)), sharex=True)
    for axis, name in zip(axes, figures, strict=True):
        lines: dict[tuple[str, int, str], list[tuple[float, float]]] = defaultdict(list)
        for s in samples:
            if s.figure == name and s.value >= 0:
                lines[s.node, s.life, s.role].append((s.seconds / 60, s.value))
        for (node, _, role), points in lines.items():
            is_steady = node == "steady"
            axis.plot(
                *zip(*points, strict=True), lw=1.2 if is_steady else 0.5, label=role if is_steady else None
            )
        axis.set_ylabel(name)
        axis.legend(loc="upper left", fontsize="small")
    axes[-1].set_xlabel("minutes")
    figure.suptitle("A swarm with churn; bold: the node that is not killed")
    figure.tight_layout()
    figure.savefig(folder / "soak.png", dpi=100)


def _thinned(points: list[tuple[float, float]], most: int = 600) -> list[tuple[float, float]]:
    """Means of neighbours, so that the slopes of all pairs stay few."""
    width = -(-len(points) // most)
    parts = [points[i : i + width] for i in range(0, len(points), width)]
    return [(sum(t for t, _ in part) / len(part), sum(v for _, v in part) / len(part)) for part in parts]


def _role(process: psutil.Process) -> str | None:
    """What a process is to its node; None for short-lived helpers, and for those that are gone."""
    try:
        words = process.cmdline()
    except psutil.Error:
        return None
    if process.name() == "p2pd":
        return "p2pd"
    for word in words:
        if word.startswith("swarmd.entrypoints."):
            return word.rpartition(".")[2]
    return "daemon" if "swarmd" in words and "start" in words else None


def _files(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place) / name
            if path.exists():
                yield path


def _free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
