"""The stage: a real node as victim, a real honest peer, and an attacker in a process of its own.

All are on loopback, each at an address of its own, as strangers are.
"""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from node_process import NodeProcess

from swarmd.monitor.control import ControlError, fetch_peers, fetch_status
from swarmd.monitor.status import NodeStatus, PeerStatus
from swarmd.paths import Home

VICTIM_HOST, HONEST_HOST = "127.0.1.1", "127.0.2.1"
PATIENCE_SECONDS = 120.0
MOST_MEMORY_RISE = 100_000_000
_WINDOW_SECONDS = 5.0
_MOST_WINDOWS = 10
_SLOWED_NODE = Path(__file__).parents[2] / "benchmarks" / "slowed" / "node.py"


class Attacker:
    """Gives orders to `attacker.py`."""

    def __init__(self, folder: Path) -> None:
        support = str(Path(__file__).parents[1])
        self._hosts = 10
        self.peer_ids: set[str] = set()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hostile.attacker", str(folder)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([support, *sys.path])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answers: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._number = 0
        threading.Thread(target=self._listen, daemon=True).start()

    def begin(self, do: str, **arguments: Any) -> Callable[[], Any]:
        """Order something; call what is returned to wait for its result."""
        self._number += 1
        number = self._number
        self._answers[number] = queue.Queue()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, "number": number, **arguments}) + "\n")
        self._process.stdin.flush()

        def result() -> Any:
            answer = self._answers[number].get(timeout=PATIENCE_SECONDS)
            assert "error" not in answer, answer
            return answer["result"]

        return result

    def do(self, do: str, **arguments: Any) -> Any:
        """Order something and wait for its result."""
        return self.begin(do, **arguments)()

    def appear(self, who: str, victim: str = "", host: str | None = None) -> Any:
        """A new identity, at an address of its own unless one is given; its peer id and addresses."""
        if host is None:
            self._hosts += 1
            host = f"127.0.{self._hosts}.1"
        appeared = self.do("appear", who=who, host=host, victim=victim)
        self.peer_ids.add(appeared["peer_id"])
        return appeared

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            self._answers[answer["number"]].put(answer)


@dataclass
class Stage:
    """Who is there."""

    victim: NodeProcess
    honest: NodeProcess
    attacker: Attacker
    victim_address: str = ""
    honest_id: str = ""
    memory_before: int = 0

    def status(self, node: NodeProcess | None = None) -> NodeStatus:
        """What a node, the victim unless one is given, says of itself."""
        return ask(fetch_status, node or self.victim)

    def books(self) -> dict[str, PeerStatus]:
        """What the victim says of its peers, by peer id."""
        return {peer.peer_id: peer for peer in ask(fetch_peers, self.victim)}

    def rejected(self, peer_id: str) -> dict[str, int]:
        """The victim's counts of one peer."""
        book = self.books().get(peer_id)
        return book.rejected if book else {}

    def until_rejected(self, peer_id: str, reason: str, again: Callable[[], object]) -> None:
        """Do something until the victim has counted it against a peer for a reason."""
        before = self.rejected(peer_id).get(reason, 0)
        self.until_heard(peer_id, again, lambda book: book.rejected.get(reason, 0) > before)

    def until_heard(
        self, peer_id: str, again: Callable[[], object], is_booked: Callable[[PeerStatus], bool]
    ) -> None:
        """Say something until the victim's book of a peer shows it.

        GossipSub promises no delivery, least of all on a connection that has just been made.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            again()
            if within(3.0, lambda: peer_id in (books := self.books()) and is_booked(books[peer_id])):
                return
        pytest.fail(f"it was not heard; of this peer there is {self.books().get(peer_id)}")

    def others_rejected(self) -> dict[str, dict[str, int]]:
        """What the victim has refused from anybody who is not the attacker. It should be nothing."""
        return {
            peer_id: book.rejected
            for peer_id, book in self.books().items()
            if book.rejected and peer_id not in self.attacker.peer_ids
        }

    def is_unharmed(self) -> None:
        """Memory is where it was, but for 100 MB, and nobody but the attacker was refused anything."""
        assert self.memory() - self.memory_before < MOST_MEMORY_RISE
        assert self.others_rejected() == {}

    @contextlib.contextmanager
    def stranger(self, who: str) -> Iterator[str]:
        """A new identity of the attacker, connected to the victim, for the length of a block; its peer id."""
        yield self.attacker.appear(who, self.victim_address)["peer_id"]
        self.attacker.do("vanish", who=who)

    def honest_is_heard(self) -> None:
        """The honest peer's groups are accepted and trained on from here on."""
        accepted, used = self.books()[self.honest_id].accepted, self.status().external_groups
        until(
            lambda: (
                self.books()[self.honest_id].accepted >= accepted + 3 and self.status().external_groups > used
            )
        )

    def rounds_per_second(self, seconds: float) -> float:
        """The victim's rate of rounds over a while."""
        first, began = self._next_round()
        while True:
            last, ended = self._next_round()
            if ended - began >= seconds:
                return (last - first) / (ended - began)

    def _next_round(self) -> tuple[int, float]:
        """The number of the round that ends next, and when it did."""
        before = self.status().round
        until(lambda: self.status().round > before)
        return self.status().round, time.monotonic()

    def keeps_its_rate(self, attack: Callable[[float], Callable[[], object]]) -> float:
        """The victim's rate of rounds under attack, as a part of that without it.

        `attack(seconds)` begins one and returns what waits for its end. Windows with and without take
        turns, since other programs use this machine as well; they are added up until the part is 0.9,
        and no longer than a flood that costs rounds would need to show.
        """
        quiet, attacked = self.rounds_per_second(_WINDOW_SECONDS), 0.0
        for windows in range(1, _MOST_WINDOWS + 1):
            ended = attack(_WINDOW_SECONDS + 1)
            attacked += self.rounds_per_second(_WINDOW_SECONDS)
            ended()
            quiet += self.rounds_per_second(_WINDOW_SECONDS)
            # One window more without the attack than with it.
            part = (attacked / windows) / (quiet / (windows + 1))
            if windows > 1 and part >= 0.9:
                return part
        return part

    def memory(self) -> int:
        """Resident bytes of the victim: what faces the network, and what scores."""
        status = self.status()
        models = {status.workers[name].pid for name in ("generator", "trainer")}
        total = 0
        for process in [psutil.Process(self.victim.process.pid), *self.victim.children()]:
            if process.pid not in models:
                try:
                    total += process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
        return total


def ask(fetch: Callable[[Path], Any], node: NodeProcess) -> Any:
    """An answer of a node; it has to come."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return fetch(Home(node.home).control_socket)
        except ControlError:
            if time.monotonic() > deadline or node.process.poll() is not None:
                pytest.fail(f"the node does not answer: {node.printed()[-2000:]}")
            time.sleep(0.1)


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Whether something comes to hold in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def until(condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until something holds. Fails when it does not in time."""
    assert within(seconds, condition), "it did not come about"


def node(folder: Path, name: str, host: str, *arguments: str) -> NodeProcess:
    """A node that learns from peers in half of each batch. A training step takes its time, as with a
    larger model on a device of its own, so that rounds do not hang on who else uses the processor.
    """
    os.environ["STEP_SECONDS"] = "0.5"
    return NodeProcess(
        folder / name,
        program=(str(_SLOWED_NODE),),
        arguments=[
            *("--listen", f"/ip4/{host}/tcp/0"),
            *("--set", "gossip.record_interval_seconds=2"),
            *("--set", "rewards.timeout_seconds=2"),
            *("--set", "schedule.eval_every_rounds=0"),
            # Loopback addresses tell strangers apart here.
            *("--set", "peers.exempt_networks=[]"),
            *arguments,
        ],
    )


@contextlib.contextmanager
def set_the_stage(folder: Path, attacker: Attacker, *victim_arguments: str) -> Iterator[Stage]:
    """Victim and honest peer, training, and learning from each other. Both end in good order."""
    victim = node(folder, "victim", VICTIM_HOST, *victim_arguments).start()
    stage = Stage(victim, NodeProcess(folder / "honest"), attacker)
    try:
        until(lambda: bool(stage.status().addresses))
        stage.victim_address = stage.status().addresses[0]
        stage.honest = node(folder, "honest", HONEST_HOST, "--join", stage.victim_address).start()
        until(lambda: bool(stage.status(stage.honest).addresses))
        stage.honest_id = stage.status(stage.honest).peer_id
        until(lambda: stage.honest_id in stage.books())
        stage.honest_is_heard()
        stage.memory_before = stage.memory()
        yield stage
        for each in (stage.honest, victim):
            assert each.stop()[0] == 0, each.printed()[-2000:]
            assert "Traceback" not in each.printed()
    finally:
        stage.honest.kill()
        victim.kill()
