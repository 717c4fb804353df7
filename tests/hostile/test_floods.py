"""Floods on a real node, from keys that go on whether they are listened to or not. What they cost of its
rate of rounds: tests/benchmarks/measure_floods.py.
"""

import pytest
from hostile.floods import FLOODS, appear, begin
from hostile.stage import Stage, until

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(600)]


def test_floods_stop_no_round_cost_little_memory_and_no_other_peer(stage: Stage) -> None:
    peer_ids = appear(stage)
    rounds, ended = stage.status().round, begin(stage, 10.0)
    stage.honest_is_heard()
    until(lambda: stage.status().round >= rounds + 5)
    ended()
    stage.is_unharmed()
    books = stage.books()
    assert books[peer_ids["garbage"]].rejected["malformed"] > 0
    assert books[peer_ids["garbage"]].accepted == 0
    for who in FLOODS:
        stage.attacker.do("vanish", who=who)
