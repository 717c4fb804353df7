"""A swarm in one process, with the daemon's rooms and in virtual time."""

from collections import defaultdict

import msgspec
import pytest
from small_swarm import plan, run
from swarmd_protocol.codec import decode
from swarmd_protocol.envelope import Envelope, EnvelopeLimits, open_envelope
from swarmd_protocol.messages import Kind, RolloutGroupMessage
from swarmd_protocol.topics import rollouts_topic

from swarmd.gossip.memory import InMemoryNetwork
from swarmd.gossip.subscription import Subscription
from swarmd.identity import verify
from swarmd.loops.state import Clock
from swarmd.simulate.plan import HeldOut, NetworkPlan
from swarmd.simulate.rows import Row
from swarmd.simulate.swarm import SimulatedNode, simulate_with
from swarmd.simulate.verifier import VerifierProcess
from swarmd.tasks.manifest import Manifest
from swarmd.types import TaskReference


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


GREEDY = HeldOut(every=1, tasks=18, temperature=0.0)


@pytest.fixture(scope="module")
def alone(verifier: VerifierProcess) -> tuple[SimulatedNode, ...]:
    return run(verifier, "2/0", rounds=1, held_out=GREEDY)


@pytest.mark.parametrize("arm", ["4/0", "2/2", "2+2self", "2/2+frozen"])
def test_all_arms_of_a_seed_begin_alike(
    verifier: VerifierProcess, alone: tuple[SimulatedNode, ...], arm: str
) -> None:
    """With the same weights, which give the same answers."""
    nodes = run(verifier, arm, rounds=1, held_out=GREEDY)
    for node, other in zip(nodes, alone, strict=False):
        assert node.peer_id == other.peer_id
        assert node.rows[0].heldout_by_task == other.rows[0].heldout_by_task


class Listener:
    """A guest that writes down which tasks each node shared groups of."""

    def __init__(self) -> None:
        self.heard: defaultdict[str, list[TaskReference]] = defaultdict(list)

    async def run(self, network: InMemoryNetwork, manifest: Manifest, clock: Clock) -> None:
        topic = rollouts_topic(manifest.swarm_id)
        limits = EnvelopeLimits(manifest.swarm_id, Kind.ROLLOUT_GROUP, None)
        async with network.transport("listener") as transport:
            async for received in transport.subscribe(Subscription(topic, 1000)):
                envelope = open_envelope(received.data, verify, limits, int(clock.wall() * 1000))
                assert isinstance(envelope, Envelope)
                message = decode(envelope.payload, RolloutGroupMessage)
                assert isinstance(message, RolloutGroupMessage)
                self.heard[received.source].append(message.task)


def test_a_node_is_asked_the_same_in_all_arms_however_many_they_take(verifier: VerifierProcess) -> None:
    streams = []
    for arm in ("3/0", "1/1"):
        listener = Listener()
        simulate_with(verifier.call, plan(arm, rounds=2), [listener.run])
        in_order = {
            node: sorted(tasks, key=lambda task: task.index) for node, tasks in listener.heard.items()
        }
        streams.append(in_order)
    many, few = streams
    assert many.keys() == few.keys()
    assert len(many) == 2
    for node, tasks in few.items():
        assert len(many[node]) == 6
        assert 2 <= len(tasks) <= 4
        assert tasks == many[node][: len(tasks)]
    first, second = many.values()
    assert not set(first) & set(second)
