"""A process that holds a home and answers on its control socket, as a node does."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swarmd.paths import Home

PROGRAM = """
import asyncio, signal, sys
from pathlib import Path
from swarmd.errors import SwarmdError
from swarmd.monitor.control_server import ControlServer
from swarmd.monitor.status import BootstrapStatus, LastKnown, NodeStatus, PeerStatus, save_last_known
from swarmd.paths import Home

home, manner = Home(Path(sys.argv[1])), sys.argv[2]
home.prepare()
status = NodeStatus(
    peer_id="12D3KooWMepTrqqQ1WJbAAiP3hmXyebN4Z3aEeUk3tt578DkX8iz", name="fox", swarm="tiny",
    swarm_id="3f9a1c0e" * 8, model="tiny", state="training", round=60, rounds=100, policy_version=58,
    uptime_seconds=3700.0, peers=2, waiting_for="trainer waits for 2 more rollout groups",
    trained_groups=8, external_groups=2,
    bootstrap=(BootstrapStatus(address="/ip4/10.0.0.9/tcp/1", is_reachable=False, last_error="refused",
                               seconds=65.0),),
)
peers = (
    PeerStatus(peer_id="12D3KooWelk", name="elk", accepted=3),
    PeerStatus(peer_id="12D3KooWowl", name="owl\\x1b[2J", model="tiny", round=57, accepted=140,
               rejected={"stale": 2, "quota": 5}, last_seen_seconds=1.5,
               state="closed", score=-3.5, validity=0.97, seconds_left=90.0),
)

def judge(peer_id, word):
    return f"told to {word}"

async def save():
    if (home.folder / "disk is full").exists():
        raise SwarmdError("no checkpoint as asked: the disk is full")
    return str(home.checkpoints / "checkpoint-60")

async def run():
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    if manner != "deaf":
        loop.add_signal_handler(signal.SIGTERM, ended.set)
    else:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if manner == "answers":
        async with ControlServer(
            home.control_socket, status=lambda: status, peers=lambda: peers, judge=judge, save=save,
            stop=ended.set,
        ):
            print("up", flush=True)
            await ended.wait()
            save_last_known(home.status_file, LastKnown(status, peers))
    else:
        print("up", flush=True)
        await ended.wait()

with home.lock():
    asyncio.run(run())
print("ended", flush=True)
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def node(home: Home) -> Iterator[Callable[[str], "subprocess.Popen[str]"]]:
    """Starts one: `answers`, `silent` (no control socket), or `deaf` (nor does it heed SIGTERM)."""
    started: list[subprocess.Popen[str]] = []

    def start(manner: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(home.folder), manner], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
