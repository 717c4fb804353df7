"""An attacker in a swarm of four (simulated, with the daemon's rooms and loops) that answers every group it
hears with a copied, forged, low-quality or payload-carrying one. The long form, with figures, is
tests/benchmarks/measure_attack.py.
"""

import pytest
from hostile.teacher import Teacher

from swarmd.simulate.plan import HeldOut, NetworkPlan, NodePlan, SwarmPlan
from swarmd.simulate.swarm import simulate

ROUNDS = 8


@pytest.mark.timeout(600)
def test_honest_nodes_learn_from_each_other_and_never_say_the_payload() -> None:
    teacher = Teacher(seed=0)
    plan = SwarmPlan(
        nodes=(NodePlan(),) * 3,
        rounds=ROUNDS,
        seed=0,
        # One delay for all: a copy that overtakes what it was copied from makes a duplicate of the original.
        network=NetworkPlan(delay=(0.01, 0.01)),
        held_out=HeldOut(every=0),
    )
    nodes = simulate(plan, [teacher.run])
    for node in nodes:
        assert [row.round for row in node.rows] == list(range(1, ROUNDS + 1))
        assert sum(row.groups_external for row in node.rows) > 0
        assert all(node.accepted[other.peer_id] > 0 for other in nodes if other is not node)
    me = teacher.identity.peer_id
    assert {reason for node in nodes for reason in node.rejected[me]} == {"duplicate", "bad_signature"}
    assert sum(node.screened[me].get("unlikely", 0) for node in nodes) > 0
    for node in nodes:
        others = {other.peer_id for other in nodes} - {node.peer_id}
        assert not any(node.rejected[other] or node.screened[other] for other in others)
    assert teacher.heard > 0
    assert teacher.taught == 0
