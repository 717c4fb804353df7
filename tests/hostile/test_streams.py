"""A node whose bootstrap peers are hostile: they answer catch-up badly, hold streams and connections open,
fill its DHT with made-up nodes, and announce addresses that lead nowhere.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile.stage import VICTIM_HOST, Attacker, Stage, set_the_stage, until

pytestmark = pytest.mark.swarm

WAYS = ("huge", "endless", "silent", "crowd")


@pytest.fixture(scope="module")
def stage(short_folder: Path, attacker: Attacker) -> Iterator[Stage]:
    """The victim joins at four hostile peers, and the honest one at the victim."""
    join: list[str] = []
    for how in WAYS:
        (address, *_) = attacker.appear(how)["addresses"]
        attacker.do("serve_catch_up", who=how, how=how)
        join += ["--join", address]
    with set_the_stage(short_folder, attacker, *join) as made:
        yield made


def test_hostile_bootstrap_peers_and_their_answers_delay_no_round(stage: Stage) -> None:
    stage.victim.wait_for_round(5)
    until(lambda: any(stage.rejected(peer_id).get("malformed") for peer_id in stage.attacker.peer_ids))
    assert stage.others_rejected() == {}


def test_streams_and_connections_that_say_nothing_are_survived(stage: Stage) -> None:
    stage.attacker.appear("holder", stage.victim_address)
    for how in ("silent", "slow"):
        stage.attacker.do("hold_streams", who="holder", how=how, count=20)
    port = int(stage.victim_address.split("/")[4])
    assert stage.attacker.do("half_open", host=VICTIM_HOST, port=port, count=200) > 0
    stage.honest_is_heard()


def test_asking_for_all_groups_again_and_again_is_answered_once(stage: Stage) -> None:
    stage.attacker.appear("beggar", stage.victim_address)
    received = stage.attacker.do("ask_catch_up", who="beggar", times=30)
    assert 0 < received < 5_000_000


def test_made_up_nodes_in_the_dht_crowd_out_nobody(stage: Stage) -> None:
    stage.attacker.appear("spammer", stage.victim_address)
    deaf = stage.attacker.do("listen_deaf", host="127.0.250.1")
    nowhere = [f"/ip4/127.0.250.1/tcp/{port}/p2p-circuit/{'x' * 200}" for port in range(1, 15)]
    stage.attacker.do(
        "spam_records", who="spammer", count=1500, addresses=[f"/ip4/127.0.250.1/tcp/{deaf}", *nowhere]
    )
    until(lambda: len(stage.books()) > 100)
    stage.honest_is_heard()
    assert len(stage.books()) <= 1024
    assert stage.honest_id in stage.books()


def test_all_of_it_costs_little_memory_and_no_good_name(stage: Stage) -> None:
    assert stage.memory() - stage.memory_before < 100_000_000
    assert stage.others_rejected() == {}
    assert stage.status(stage.honest).peers > 0
