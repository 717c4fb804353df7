import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from sample_status import PEER_ID, sample_status

from swarmd.monitor.history import RoundRecord
from swarmd.monitor.local_swarm import NodeView
from swarmd.monitor.local_swarm_screen import final_notes, final_table, render_swarm, swarm_line
from swarmd.monitor.status import PeerStatus, RewardStatus, WorkerStatus


def node(number, **changes):
    fields = {
        "name": f"node-{number}",
        "status": sample_status(name=f"node-{number}", peer_id=f"{PEER_ID[:-1]}{number}"),
        "peers": tuple(
            PeerStatus(peer_id=f"{PEER_ID[:-1]}{other}", accepted=10 * number + other)
            for other in (1, 2, 3)
            if other != number
        ),
        "exit_code": None,
        "last_words": "",
    }
    return NodeView(**{**fields, **changes})


THREE = [node(1), node(2), node(3)]
FAILED = node(2, status=None, exit_code=1, last_words="swarmd: no space left")


def drawn(renderable, width=80):
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(renderable)
    return console.file.getvalue()


def screen(nodes, width=80, height=24, stopping=False):
    return drawn(
        render_swarm(nodes, 75.0, Path("/runs/run-1"), stopping=stopping, width=width, height=height), width
    )


@pytest.mark.parametrize("nodes", [THREE, [node(n) for n in range(1, 9)], [FAILED] * 3 + THREE])
@pytest.mark.parametrize("size", [(80, 24), (120, 40), (60, 20)])
def test_every_swarm_fits_its_terminal(nodes, size):
    lines = screen(nodes, *size).splitlines()
    assert len(lines) <= size[1]
    assert max(map(len, lines)) <= size[0]


def test_all_nodes_are_on_one_screen():
    text = screen(THREE)
    for part in ("3 nodes", "node-1", "node-2", "node-3", "60/100", "0.366", "44%", "1 min 15 s", "█"):
        assert part in text, part


def test_the_mean_covers_the_rounds_that_all_nodes_have_done():
    short = node(2, status=sample_status(reward=RewardStatus(local_mean=0.5, recent=(0.5, 0.7))))
    long = node(1, status=sample_status(reward=RewardStatus(local_mean=0.9, recent=(0.1, 0.3, 0.9))))
    assert "mean own reward of all nodes  0.500" in screen([short, long])


def test_starting_failing_and_stopping_are_told():
    workers = {"trainer": WorkerStatus(pid=1, state="starting", doing="loading model")}
    starting = node(1, status=sample_status(state="starting", workers=workers))
    assert "Starting 1 node: loading model." in screen([starting, node(2)])
    assert "Starting 1 node: loading libraries." in screen([node(1, status=None), node(2)])
    assert "! node-2 failed: swarmd: no space left" in screen([node(1), FAILED])
    assert "Stopping" in screen(THREE, stopping=True)


def test_a_line_tells_the_same_without_a_terminal():
    line = swarm_line([node(1), FAILED, node(3, exit_code=0)], 75)
    assert line == (
        "1 min 15 s: node-1 training round 60/100 reward 0.366 2 peers 44% from peers; "
        "node-2 failed: swarmd: no space left; "
        "node-3 done round 60/100 reward 0.366 2 peers 44% from peers"
    )


TWENTY = [
    RoundRecord(round=n, ended_at=0.0, policy_version=n, own_reward=0.1 if n <= 10 else 0.25)
    for n in range(1, 21)
]


def test_the_final_table_has_learning_and_the_groups_from_each_node():
    risen = [msgspec.structs.replace(record, own_reward=3 * record.own_reward) for record in TWENTY]
    text = drawn(final_table(THREE, {"node-1": TWENTY, "node-2": [], "node-3": risen}, 80))
    rows = [line.split() for line in text.splitlines()]
    assert ["node-1", "0.100", "0.250", "2.50", "x", "60", "0.190", "44%"] in rows
    assert ["node-2", "–", "–", "–", "60", "0.190", "44%"] in rows
    assert ["all", "nodes", "0.200", "0.500", "2.50", "x"] in rows
    assert ["by", "node-1", "·", "12", "13"] in rows
    assert ["by", "node-3", "31", "32", "·"] in rows


@pytest.mark.parametrize("width", [50, 60, 80, 120])
@pytest.mark.parametrize("count", [1, 3, 8, 30])
def test_the_final_table_is_never_cut(count, width):
    nodes = [node(number) for number in range(1, count + 1)]
    text = drawn(final_table(nodes, {member.name: TWENTY for member in nodes}, width), width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    rows = [line.split() for line in text.splitlines()]
    for member in nodes:
        assert [member.name, "0.100", "0.250", "2.50", "x"] in [row[:5] for row in rows]


def test_more_nodes_than_have_room_next_to_each_other_are_summed_up():
    text = drawn(final_table([node(number) for number in range(1, 9)], {}, 80))
    assert ["by", "node-1", "2/7", "25", "0", "13"] in [line.split() for line in text.splitlines()]


def test_a_short_run_is_compared_by_halves_and_says_so():
    text = drawn(final_table(THREE, {member.name: TWENTY[:4] for member in THREE}, 80))
    assert "first 2" in text
    assert "last 2" in text


def test_the_notes_say_where_the_plot_is_and_which_node_failed_and_why():
    folder = Path("/runs/run-1")
    assert final_notes([node(1), FAILED], folder / "reward.png", folder) == [
        "node-2 failed with exit code 1: swarmd: no space left",
        "Plot: /runs/run-1/reward.png",
        "Files of the nodes: /runs/run-1",
    ]
    assert final_notes([node(1)], None, folder)[0] == "There is no plot."
