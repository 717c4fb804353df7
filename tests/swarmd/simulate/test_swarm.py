"""A swarm in one process, with the daemon's rooms and loops."""

import asyncio

from swarmd.config import Config, NodeSection, ReplaySection
from swarmd.simulate.swarm import Plan, SimulatedNode, simulate


def run(nodes: int, rounds: int, external_groups: int, loss: float = 0.0) -> tuple[SimulatedNode, ...]:
    config = Config(
        node=NodeSection(rounds=rounds),
        replay=ReplaySection(local_groups=8 - external_groups, external_groups=external_groups),
    )

    async def within_time() -> tuple[SimulatedNode, ...]:
        async with asyncio.timeout(240):
            return await simulate(Plan(config, nodes, delay_seconds=(0.0, 0.01), loss=loss))

    return asyncio.run(within_time())


def test_nodes_do_their_rounds_and_learn_from_each_other() -> None:
    nodes = run(nodes=2, rounds=6, external_groups=4)
    peer_ids = [node.peer_id for node in nodes]
    for node, other in zip(nodes, reversed(peer_ids), strict=True):
        assert [done.round for done in node.rounds] == [1, 2, 3, 4, 5, 6]
        assert node.accepted[other] > 0
        assert sum(done.external_groups for done in node.rounds) > 0
        assert all(done.external_groups + done.filled_groups == 4 for done in node.rounds)
        assert all(0 <= done.own_reward <= 1 for done in node.rounds if done.own_reward is not None)


def test_without_external_groups_nothing_of_a_peer_is_trained_on() -> None:
    for node in run(nodes=2, rounds=3, external_groups=0):
        assert all(done.external_groups == done.filled_groups == 0 for done in node.rounds)


def test_loss_costs_groups_and_no_round() -> None:
    first, second = run(nodes=2, rounds=3, external_groups=4, loss=0.99)
    assert len(first.rounds) == len(second.rounds) == 3
    assert sum(first.accepted.values()) <= 4
