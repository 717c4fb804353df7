"""An attacker in a swarm of four (simulated, with the daemon's rooms and loops) that answers every group it
hears with a copied, forged, low-quality or payload-carrying one. The long form, with figures, is
tests/benchmarks/measure_attack.py.
"""

import asyncio

import pytest
from hostile.teacher import Teacher

from swarmd.config import Config
from swarmd.simulate.swarm import Plan, SimulatedNode, simulate

ROUNDS = 8


@pytest.mark.timeout(600)
def test_honest_nodes_learn_from_each_other_and_never_say_the_payload() -> None:
    teacher = Teacher(seed=0)
    config = Config.model_validate({"node": {"rounds": ROUNDS}})

    async def within_time() -> tuple[SimulatedNode, ...]:
        async with asyncio.timeout(560):
            return await simulate(Plan(config, nodes=3, delay_seconds=(0.0, 0.01)), [teacher.run])

    nodes = asyncio.run(within_time())
    for node in nodes:
        assert len(node.rounds) == ROUNDS
        assert sum(done.external_groups for done in node.rounds) > 0
        assert all(node.accepted[other.peer_id] > 0 for other in nodes if other is not node)
    me = teacher.identity.peer_id
    assert {reason for node in nodes for reason in node.rejected[me]} == {"duplicate", "bad_signature"}
    assert sum(node.screened[me].get("unlikely", 0) for node in nodes) > 0
    for node in nodes:
        others = {other.peer_id for other in nodes} - {node.peer_id}
        assert not any(node.rejected[other] or node.screened[other] for other in others)
    assert teacher.heard > 0
    assert teacher.taught == 0
