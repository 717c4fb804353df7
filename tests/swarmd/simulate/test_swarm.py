"""A swarm in one process, with the daemon's rooms and in virtual time."""

import msgspec
import pytest
from small_swarm import run

from swarmd.simulate.plan import HeldOut, NetworkPlan
from swarmd.simulate.rows import Row
from swarmd.simulate.swarm import SimulatedNode
from swarmd.simulate.verifier import VerifierProcess


def without_wall_time(nodes: tuple[SimulatedNode, ...]) -> list[Row]:
    return [msgspec.structs.replace(row, wall_seconds=0.0) for node in nodes for row in node.rows]


def test_nodes_do_their_rounds_and_learn_from_each_other(verifier: VerifierProcess) -> None:
    nodes = run(verifier, "2/2", rounds=4)
    peer_ids = [node.peer_id for node in nodes]
    for node, other in zip(nodes, reversed(peer_ids), strict=True):
        assert [row.round for row in node.rows] == [1, 2, 3, 4]
        assert [row.virtual_seconds for row in node.rows] == [1.0, 2.0, 3.0, 4.0]
        assert node.accepted[other] >= 8
        assert sum(row.groups_external for row in node.rows) > 0
        assert all(row.groups_own + row.groups_external == 4 for row in node.rows)
        assert all(row.groups_external + row.groups_filled == 2 for row in node.rows)
        assert all(row.own_reward is not None and 0 <= row.own_reward <= 1 for row in node.rows)
        assert all(row.groups_generated == 2 + row.groups_filled for row in node.rows)
        assert node.rows[-1].updates == node.rows[-1].policy_version > 0


def test_the_same_plan_gives_the_same_rows(verifier: VerifierProcess) -> None:
    chosen = {"network": NetworkPlan(delay=(0.0, 1.5), loss=0.2), "held_out": HeldOut(every=2, tasks=9)}
    first, second = (run(verifier, "2/2", nodes=3, **chosen) for _ in range(2))
    assert without_wall_time(first) == without_wall_time(second)
    assert without_wall_time(first) != without_wall_time(run(verifier, "2/2", nodes=3, seed=1, **chosen))


def test_without_external_groups_nothing_of_a_peer_is_trained_on(verifier: VerifierProcess) -> None:
    for node in run(verifier, "4/0", rounds=2):
        assert all(row.groups_external == row.groups_filled == 0 for row in node.rows)
        assert all(row.groups_own == row.groups_generated == 4 for row in node.rows)


def test_loss_costs_groups_and_no_round(verifier: VerifierProcess) -> None:
    first, second = run(verifier, "2/2", network=NetworkPlan(loss=0.99))
    assert len(first.rows) == len(second.rows) == 3
    assert sum(first.accepted.values()) <= 4
    assert sum(row.groups_filled for row in first.rows) >= 4


@pytest.mark.parametrize("arm", ["4/0", "2/2", "2/2+lag2", "2+2self", "2/2+frozen"])
def test_all_arms_of_a_seed_begin_alike(verifier: VerifierProcess, arm: str) -> None:
    """The same weights, and the same questions: greedy answers and first own groups are the same."""
    held_out = HeldOut(every=1, tasks=18, temperature=0.0)
    reference = run(verifier, "2/0", rounds=1, held_out=held_out)
    nodes = run(verifier, arm, rounds=1, held_out=held_out)
    for node, other in zip(nodes, reference, strict=False):
        assert node.peer_id == other.peer_id
        assert node.rows[0].heldout_by_task == other.rows[0].heldout_by_task
