"""A node whose bootstrap peers are hostile: they answer catch-up badly, hold streams and connections open,
fill its DHT with made-up nodes, and announce addresses that lead nowhere.
"""

import pytest
from hostile.stage import VICTIM_HOST, Stage, until

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(600)]


def test_hostile_bootstrap_peers_and_their_answers_delay_no_round(stage: Stage) -> None:
    until(lambda: stage.status().round >= 5)
    until(lambda: any(stage.rejected(peer_id) for peer_id in stage.attacker.peer_ids))
    stage.is_unharmed()


def test_streams_and_connections_that_say_nothing_are_survived(stage: Stage) -> None:
    with stage.stranger("holder"):
        for how in ("silent", "slow"):
            stage.attacker.do("hold_streams", who="holder", how=how, count=20)
        port = int(stage.victim_address.split("/")[4])
        assert stage.attacker.do("half_open", host=VICTIM_HOST, port=port, count=200) > 0
        stage.honest_is_heard()
    stage.is_unharmed()


def test_asking_for_all_groups_again_and_again_is_answered_once(stage: Stage) -> None:
    with stage.stranger("beggar"):
        assert 0 < stage.attacker.do("ask_catch_up", who="beggar", times=30) < 5_000_000
    stage.is_unharmed()


def test_made_up_nodes_in_the_dht_crowd_out_nobody(stage: Stage) -> None:
    deaf = stage.attacker.do("listen_deaf", host="127.0.250.1")
    nowhere = [f"/ip4/127.0.250.1/tcp/{port}/p2p-circuit/{'x' * 200}" for port in range(1, 15)]
    addresses = [f"/ip4/127.0.250.1/tcp/{deaf}", *nowhere]
    with stage.stranger("spammer"):
        stored = stage.attacker.do("spam_records", who="spammer", count=600, addresses=addresses)
    # One peer may put its own record here, and a few for others.
    assert stored < 100
    stage.honest_is_heard()
    assert stage.honest_id in stage.books()
    assert len(stage.books()) < 150
    stage.is_unharmed()
