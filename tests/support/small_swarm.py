"""Swarms small enough for tests."""

from typing import Any

import msgspec

from swarmd.simulate.arms import parse_arm
from swarmd.simulate.plan import HeldOut, NodePlan, SwarmPlan
from swarmd.simulate.swarm import SimulatedNode, simulate_with
from swarmd.simulate.verifier import VerifierProcess

GROUP_SIZE = 4


def plan(
    arm: str = "2/2", *, nodes: int | tuple[NodePlan, ...] = 2, rounds: int = 3, seed: int = 0, **changes: Any
) -> SwarmPlan:
    """A small swarm; few completions and a high rate, so that something is learned from in a few rounds."""
    chosen = parse_arm(arm)
    config = {
        "replay": {"local_groups": chosen.local, "external_groups": chosen.external},
        "rollout": {"group_size": GROUP_SIZE},
        "training": {"warmup_steps": 0},
    }
    plans = (NodePlan(),) * nodes if isinstance(nodes, int) else nodes
    swarm = SwarmPlan(nodes=plans, rounds=rounds, seed=seed, config=config, held_out=HeldOut(every=0))
    return msgspec.structs.replace(chosen.of(swarm), **changes)


def run(verifier: VerifierProcess, *args: Any, **changes: Any) -> tuple[SimulatedNode, ...]:
    """Simulate one."""
    return simulate_with(verifier.call, plan(*args, **changes))
