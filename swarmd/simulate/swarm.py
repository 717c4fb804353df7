"""A swarm in one process, in virtual time: every node has its own policy, identity, task stream and
buffer; they meet on an in-memory network with delay and loss. Completions are scored by a real, sandboxed
verifier process that all nodes share. Messages are sealed, checked and counted as between machines.

The same plan gives the same rows, bit for bit, on the same machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from swarmd.errors import SwarmdError, WorkerError
from swarmd.gossip.memory import InMemoryNetwork
from swarmd.loops.evaluate import ask
from swarmd.loops.state import Clock
from swarmd.rewards.verifier import Call, VerifierPool
from swarmd.simulate.node import Node, Surroundings
from swarmd.simulate.plan import SwarmPlan
from swarmd.simulate.rows import Row
from swarmd.simulate.verifier import VerifierProcess
from swarmd.simulate.virtual_time import VirtualTimeLoop
from swarmd.tasks.manifest import Manifest
from swarmd.tasks.source import held_out_tasks

__all__ = ["Guest", "SimulatedNode", "simulate", "simulate_with"]

Guest = Callable[[InMemoryNetwork, Manifest, Clock], Coroutine[Any, Any, None]]
"""Something else on the network, such as an attacker: runs until the nodes have done their rounds."""


@dataclass(frozen=True)
class SimulatedNode:
    """What became of one node."""

    peer_id: str
    rows: tuple[Row, ...]
    accepted: dict[str, int]
    """Groups accepted, by the peer id of their author."""
    rejected: dict[str, dict[str, int]]
    """What was not accepted, by peer id and reason."""
    screened: dict[str, dict[str, int]]
    """Accepted groups that a screen held up, by peer id and screen."""


OnRound = Callable[[float], None]
"""Told now and then how much of the simulation is done, from 0 to 1."""


def simulate(plan: SwarmPlan, guests: Sequence[Guest] = ()) -> tuple[SimulatedNode, ...]:
    """Run a swarm from start to end, with a verifier of its own.

    Raises ConfigError for a model or manifest that does not exist, WorkerError when the verifier fails.
    """
    with VerifierProcess(plan.node_config(), plan.manifest()) as verifier:
        return simulate_with(verifier.call, plan, guests)


def simulate_with(
    verifier: Call, plan: SwarmPlan, guests: Sequence[Guest] = (), on_round: OnRound | None = None
) -> tuple[SimulatedNode, ...]:
    """The same, with a verifier that is running."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualTimeLoop)
        try:
            return runner.run(_simulate(plan, verifier, Clock(loop.time, loop.wall_time), guests, on_round))
        except ExceptionGroup as errors:
            raise _first(errors) from errors


async def _simulate(
    plan: SwarmPlan,
    call: Call,
    clock: Clock,
    guests: Sequence[Guest],
    on_round: OnRound | None,
) -> tuple[SimulatedNode, ...]:
    manifest = plan.manifest()
    network = InMemoryNetwork(plan.seed, plan.network.delay, plan.network.loss, clock.monotonic)
    pool = VerifierPool([call], plan.node_config().rewards.timeout_seconds)
    tasks = held_out_tasks(manifest, plan.held_out.tasks)
    asked = await ask(tasks, manifest, pool)
    around = Surroundings(plan, manifest, network, pool, clock, asked)
    nodes = [Node(around, number, node) for number, node in enumerate(plan.nodes)]
    async with asyncio.TaskGroup() as group:
        companions = [group.create_task(guest(network, manifest, clock)) for guest in guests]
        if on_round is not None:
            companions.append(group.create_task(_tell(on_round, plan.rounds)))
        await asyncio.gather(*(node.run() for node in nodes))
        for task in companions:
            task.cancel()
    if pool.failures:
        raise WorkerError(f"the verifier failed on {pool.failures} requests: the result is not repeatable")
    return tuple(_result(node) for node in nodes)


async def _tell(on_round: OnRound, rounds: int) -> None:
    loop = asyncio.get_running_loop()
    while True:
        on_round(min(1.0, loop.time() / rounds))
        await asyncio.sleep(1.0)


def _result(node: Node) -> SimulatedNode:
    views = node.peers.views(())
    return SimulatedNode(
        node.identity.peer_id,
        node.rows,
        accepted={view.peer_id: view.accepted for view in views},
        rejected={view.peer_id: view.rejected for view in views},
        screened={view.peer_id: view.screened for view in views},
    )


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """One of our own errors, for a person, where there is one; else whatever there is."""
    known, unknown = errors.split(SwarmdError)
    inner: BaseException = unknown or known or errors
    while isinstance(inner, BaseExceptionGroup):
        inner = inner.exceptions[0]
    return inner
