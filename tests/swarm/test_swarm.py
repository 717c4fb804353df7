"""Several real nodes on loopback: they learn from each other, find each other again, and a node that
is alone because nobody answers trains all the same.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.swarm

MakeNode = Callable[..., Any]
FreePorts = Callable[[int], list[int]]


def peer_id_of(home: Path) -> str:
    subprocess.run([sys.executable, "-m", "swarmd", "identity", "new", "--home", str(home)], check=True)
    shown = subprocess.run(
        [sys.executable, "-m", "swarmd", "identity", "show", "--json", "--home", str(home)],
        check=True,
        capture_output=True,
        text=True,
    )
    return str(json.loads(shown.stdout)["peer_id"])


def listen(port: int) -> list[str]:
    return ["--listen", f"/ip4/127.0.0.1/tcp/{port}"]


def test_three_nodes_accept_and_use_groups_of_both_others(make_node: MakeNode, free_ports: FreePorts) -> None:
    ports = free_ports(3)
    first = make_node("a", *listen(ports[0]))
    join = ["--join", f"/ip4/127.0.0.1/tcp/{ports[0]}/p2p/{peer_id_of(first.home)}"]
    nodes = [first, make_node("b", *listen(ports[1]), *join), make_node("c", *listen(ports[2]), *join)]
    for node in nodes:
        node.start()
    peer_ids = {node.wait_for(lambda status: status["peers"] == 2)["peer_id"] for node in nodes}
    for node in nodes:
        status = node.wait_for(lambda status: status["external_groups"] > 0)
        peers = {peer["peer_id"]: peer for peer in node.ask("peers")}
        assert set(peers) == peer_ids - {status["peer_id"]}

    def both_accepted(node: Any) -> bool:
        return all(peer["accepted"] > 0 for peer in node.ask("peers"))

    for node in nodes:
        node.wait_for(lambda status, node=node: both_accepted(node))
        status = node.ask("status")
        assert status["loop_lag_max_ms"] >= 0
        assert status["resident_bytes"] < 350_000_000
    assert [node.stop()[0] for node in nodes] == [0, 0, 0]
    assert all("Traceback" not in node.printed() for node in nodes)


def judge(node: Any, word: str, peer_id: str) -> str:
    """What `swarmd peers WORD` prints."""
    command = node.command("peers", word, peer_id)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_the_operators_word_on_a_peer_is_heeded_at_once_and_outlives_the_run(
    make_node: MakeNode, free_ports: FreePorts
) -> None:
    node = make_node("a", *listen(*free_ports(1)))
    peer_id = peer_id_of(node.home.parent / "somebody")
    node.start()
    node.wait_for(lambda status: bool(status["addresses"]))
    assert judge(node, "ban", peer_id) == f"{peer_id} is banned\n"
    assert [(peer["peer_id"], peer["state"]) for peer in node.ask("peers")] == [(peer_id, "banned")]
    assert node.stop()[0] == 0
    kept = node.home / "state" / "reputation.json"
    assert '"banned"' in kept.read_text()
    assert judge(node, "forget", peer_id) == f"{peer_id} is newcomer\n"
    assert '"banned"' not in kept.read_text()


def test_a_node_with_dead_join_addresses_trains_alone_and_joins_when_one_comes_up(
    make_node: MakeNode, free_ports: FreePorts
) -> None:
    ports = free_ports(3)
    late = make_node("late", *listen(ports[0]))
    address = f"/ip4/127.0.0.1/tcp/{ports[0]}/p2p/{peer_id_of(late.home)}"
    dead = f"/ip4/127.0.0.1/tcp/{ports[2]}/p2p/{peer_id_of(late.home.parent / 'nobody')}"
    node = make_node("node", *listen(ports[1]), "--join", dead, "--join", address).start()
    alone = node.wait_for_round(1)
    assert alone["peers"] == 0
    assert any("0 peers, retrying" in problem for problem in alone["problems"])
    assert [entry["is_reachable"] for entry in alone["bootstrap"]] == [False, False]
    late.start()
    joined = node.wait_for(lambda status: status["peers"] == 1)
    assert [entry["is_reachable"] for entry in joined["bootstrap"]] == [False, True]
    assert node.stop()[0] == 0
    assert late.stop()[0] == 0


def test_p2pd_comes_back_under_the_same_identity_and_training_goes_on(
    make_node: MakeNode, free_ports: FreePorts
) -> None:
    ports = free_ports(2)
    first = make_node("a", *listen(ports[0]))
    join = ["--join", f"/ip4/127.0.0.1/tcp/{ports[0]}/p2p/{peer_id_of(first.home)}"]
    second = make_node("b", *listen(ports[1]), *join)
    first.start()
    second.start()
    second.wait_for(lambda status: status["peers"] == 1)
    (p2pd,) = [child for child in first.children() if child.name() == "p2pd"]
    p2pd.kill()
    psutil.wait_procs([p2pd], timeout=5)
    accepted = {peer["peer_id"]: peer["accepted"] for peer in second.ask("peers")}
    first_id = first.ask("status")["peer_id"]

    def more_from_first(status: dict[str, Any]) -> bool:
        now = {peer["peer_id"]: peer["accepted"] for peer in second.ask("peers")}
        return bool(now.get(first_id, 0) > accepted.get(first_id, 0) + 4)

    second.wait_for(more_from_first)
    first.wait_for(lambda status: status["peers"] == 1)
    assert first.stop()[0] == 0
    assert second.stop()[0] == 0


def test_a_taken_port_is_replaced_by_the_next_and_said(make_node: MakeNode, free_ports: FreePorts) -> None:
    (port,) = free_ports(1)
    first, second = make_node("a", *listen(port)).start(), make_node("b", *listen(port))
    first.wait_for(lambda status: bool(status["addresses"]))
    second.start()
    status = second.wait_for(lambda status: bool(status["addresses"]))
    assert f"/tcp/{port}/" not in status["addresses"][0]
    assert any(str(port) in problem for problem in status["problems"])
    assert first.stop()[0] == 0
    assert second.stop()[0] == 0


def test_a_key_copied_into_another_home_is_refused_naming_the_peer_id(make_node: MakeNode) -> None:
    first, second = make_node("a", "--isolated"), make_node("b", "--isolated")
    peer_id = peer_id_of(first.home)
    second.home.mkdir()
    (second.home / "identity.key").write_bytes((first.home / "identity.key").read_bytes())
    (second.home / "identity.key").chmod(0o600)
    first.start()
    first.wait_for_round(1)
    second.start()
    assert second.process.wait(timeout=60) == 3
    assert peer_id in second.printed()
    assert "Traceback" not in second.printed()
    assert first.stop()[0] == 0
