"""Every process of a node is killed in every state of the node: it goes on, and leaves nothing behind."""

import json
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from node_faults import LISTEN, MANY_KILLS, is_well, leftovers, process_of, wait_for_process, wait_until
from node_process import NodeProcess

from swarmd.monitor.history import read_rounds

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(1800)]

MakeNode = Callable[..., Any]
Gone = Callable[[list[psutil.Process]], bool]
ANNOUNCING = str(Path(__file__).parent / "announcing" / "node.py")
STATES = ("starting", "generating", "training", "publishing", "saving")


def announcing(node: NodeProcess, folder: Path) -> NodeProcess:
    """Has the node say what it is at, with a folder of its own for temporary files."""
    for name in ("marks", "temporary"):
        (folder / name).mkdir()
    node.program = (ANNOUNCING,)
    node.prefix = ["env", f"ANNOUNCEMENTS={folder / 'marks'}", f"TMPDIR={folder / 'temporary'}"]
    # Saved after each round, so that it is often at it.
    node.arguments += [*LISTEN, *MANY_KILLS, "--set", "schedule.checkpoint_every_rounds=1"]
    return node


def wait_for_state(marks: Path, state: str, rest: float) -> None:
    """Return `rest` seconds after the node has come into this state."""
    mark = marks / state
    mark.unlink(missing_ok=True)  # Of a process that was killed in this state.
    wait_until(mark.exists, every=0.002)
    time.sleep(rest)


def kill(node: NodeProcess, role: str, marks: Path, state: str, moments: random.Random) -> None:
    """SIGKILL to the process with this role, in this state: of the node, or, starting, of its own."""
    victim = wait_for_process(node, role)
    if state == "starting":
        victim.kill()
        victim = wait_for_process(node, role, other_than=victim.pid)
        time.sleep(moments.uniform(0.0, 3.0))
    else:
        wait_for_state(marks, state, moments.uniform(0.0, 0.1))
    victim.kill()


@pytest.mark.parametrize("role", ["p2pd", "trainer", "generator", "verifier"])
def test_a_process_that_is_killed_in_any_state_comes_back(
    role: str, make_node: MakeNode, gone: Gone, moments: random.Random, tmp_path: Path
) -> None:
    node = announcing(make_node("home"), tmp_path).start()
    first = node.wait_for(is_well)
    for state in moments.sample(STATES, len(STATES)):
        before = node.ask("status")
        victim = process_of(node, role)
        kill(node, role, tmp_path / "marks", state, moments)
        after = node.wait_for(lambda now, before=before: is_well(now) and now["round"] >= before["round"] + 3)
        assert process_of(node, role) not in (None, victim)
        assert after["peer_id"] == first["peer_id"]
    children = node.children()
    assert node.stop()[0] == 0
    assert gone(children)
    assert leftovers(node, {node.process.pid}, tmp_path / "temporary") == []
    assert "Traceback" not in node.printed()
    # The rewards of all rounds are there, of those in which something was killed, too.
    rounds = read_rounds(node.home / "history.sqlite")
    assert [record.round for record in rounds] == list(range(1, len(rounds) + 1))
    assert rounds[-1].round >= after["round"]


def test_a_daemon_that_is_killed_in_any_state_takes_all_along_and_goes_on_when_started_at_once(
    make_node: MakeNode, gone: Gone, moments: random.Random, tmp_path: Path
) -> None:
    node = announcing(make_node("home"), tmp_path).start()
    peer_id = node.wait_for(is_well)["peer_id"]
    pids = set()
    for state in moments.sample(STATES, len(STATES)):
        node.wait_for(is_well)
        if state == "starting":
            node.stop(signal.SIGKILL)
            pids.add(node.process.pid)
            node.start()
            time.sleep(moments.uniform(0.0, 8.0))
        else:
            wait_for_state(tmp_path / "marks", state, moments.uniform(0.0, 0.1))
        children = node.children()
        node.stop(signal.SIGKILL)
        pids.add(node.process.pid)
        saved = newest_saved_round(node.home / "checkpoints")
        said = len(node.printed())
        node.start()  # While the children of the killed one may still be on their way out.
        assert gone(children)
        status = node.wait_for(is_well)
        assert f"at round {saved}\n" in node.printed()[said:]
        assert status["peer_id"] == peer_id
        node.wait_for_round(status["round"] + 2)
    assert node.stop()[0] == 0
    assert leftovers(node, pids | {node.process.pid}, tmp_path / "temporary") == []
    assert "Traceback" not in node.printed()
    rounds = [record.round for record in read_rounds(node.home / "history.sqlite")]
    assert rounds == list(range(1, len(rounds) + 1))


def newest_saved_round(checkpoints: Path) -> int:
    newest = max(checkpoints.glob("checkpoint-*"))
    return int(json.loads((newest / "counters.json").read_text())["round"])
