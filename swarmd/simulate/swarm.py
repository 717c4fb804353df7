"""A swarm in one process: every node has its own policy, identity, task stream, buffer and loops; they
meet on an in-memory network with delay and loss. Completions are scored by a real, sandboxed verifier
process that all nodes share. Messages are sealed, checked and counted as between machines.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from swarmd_protocol.topics import rollouts_topic

from swarmd.config import Config
from swarmd.errors import WorkerError
from swarmd.generation.generator import Generator
from swarmd.gossip.catch_up import RecentGroups
from swarmd.gossip.memory import InMemoryNetwork
from swarmd.gossip.peers import PeerBook
from swarmd.gossip.publisher import Author, Publisher
from swarmd.gossip.subscriber import Subscriber
from swarmd.gossip.subscription import Subscription
from swarmd.identity import Identity, verify
from swarmd.loops.receive import ReceiveLoop
from swarmd.loops.rollout import RolloutLoop, Sampling
from swarmd.loops.state import LoopState
from swarmd.loops.train import Round, TrainLoop
from swarmd.loops.weights import WeightsLoop
from swarmd.models.placement import MOST_TOKENS_AT_ONCE
from swarmd.models.resolve import resolve
from swarmd.replay.samplers import load_rule
from swarmd.rewards.messages import INITIALISE, VerifierSettings
from swarmd.rewards.verifier import VerifierPool
from swarmd.rooms import pace, replay_buffer, sampler, text_screens
from swarmd.simulate.in_process import IN_PROCESS, InProcessModel
from swarmd.tasks.manifest import Manifest
from swarmd.tasks.source import TaskSource
from swarmd.training.client import TrainerClient
from swarmd.training.messages import TrainingOptions
from swarmd.workers.supervisor import Worker, WorkerLimits

NO_DEADLINE_SECONDS = 3600.0


@dataclass(frozen=True)
class Plan:
    """What to simulate. `config` holds for every node: I, J, sampling, training, rounds, seed."""

    config: Config
    nodes: int
    delay_seconds: tuple[float, float] = (0.0, 0.0)
    """A message takes between the first and the second."""
    loss: float = 0.0
    """Probability that a message does not reach one peer."""


Guest = Callable[[InMemoryNetwork, Manifest], Coroutine[Any, Any, None]]
"""Something else on the network, such as an attacker: runs until the nodes have done their rounds."""


@dataclass(frozen=True)
class SimulatedRound:
    """One round of one node."""

    round: int
    own_reward: float | None
    """Mean reward of the own groups sampled since the round before, none left out."""
    external_groups: int
    """Peers' groups trained on."""
    filled_groups: int
    """Own groups that stood in for external ones."""
    groups_with_signal: int


@dataclass(frozen=True)
class SimulatedNode:
    """What became of one node."""

    peer_id: str
    rounds: tuple[SimulatedRound, ...]
    accepted: dict[str, int]
    """Groups accepted, by the peer id of their author."""
    rejected: dict[str, dict[str, int]]
    """What was not accepted, by peer id and reason."""
    screened: dict[str, dict[str, int]]
    """Accepted groups that a screen held up, by peer id and screen."""


async def simulate(plan: Plan, guests: Sequence[Guest] = ()) -> tuple[SimulatedNode, ...]:
    """Run all nodes until each has done its rounds.

    Raises ConfigError for a model or manifest that does not exist, WorkerError when the verifier ends.
    """
    config = plan.config
    model = resolve(config.model.name)
    manifest = Manifest.load(config.swarm.manifest or model.manifest_hint)
    network = InMemoryNetwork(config.node.seed, plan.delay_seconds, plan.loss)
    async with contextlib.AsyncExitStack() as stack:
        verifier = await stack.enter_async_context(_verifier(config, manifest))
        nodes = [_Node(plan, network, manifest, number, verifier) for number in range(plan.nodes)]
        for node in nodes:
            await stack.enter_async_context(node.transport)
        async with asyncio.TaskGroup() as group:
            companions = [group.create_task(work) for node in nodes for work in node.companions()]
            companions += [group.create_task(guest(network, manifest)) for guest in guests]
            await asyncio.gather(*(node.train.run(node.state) for node in nodes))
            for task in companions:
                task.cancel()
    return tuple(node.result() for node in nodes)


@contextlib.asynccontextmanager
async def _verifier(config: Config, manifest: Manifest) -> AsyncIterator[VerifierPool]:
    """A pool of one verifier process."""
    rewards = config.rewards
    settings = VerifierSettings(manifest.tasks, rewards.strict, rewards.timeout_seconds, rewards.memory_bytes)

    async def initialise(worker: Worker) -> None:
        await worker.call(INITIALISE, settings, config.workers.start_timeout_seconds)

    worker = Worker("verifier", "swarmd.entrypoints.verifier", WorkerLimits(), initialise)
    running = asyncio.create_task(worker.run())
    try:
        await worker.wait_ready()
        yield VerifierPool([worker.call], rewards.timeout_seconds)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@dataclass
class _Node:
    """The rooms of one simulated node."""

    plan: Plan
    network: InMemoryNetwork
    manifest: Manifest
    number: int
    verifier: VerifierPool
    state: LoopState = field(default_factory=LoopState)
    rounds: list[SimulatedRound] = field(default_factory=list)

    def __post_init__(self) -> None:
        config, manifest = self.plan.config, self.manifest
        self.identity = Identity.generate()
        self.transport = self.network.transport(self.identity.peer_id)
        self.peers = PeerBook(self.identity.peer_id)
        self._seeds = random.Random(f"{config.node.seed}/{self.number}")
        self._max_new_tokens = config.rollout.max_new_tokens or manifest.max_new_tokens
        self._model = InProcessModel(
            resolve(config.model.name).path,
            TrainingOptions(
                **config.training.options(),
                tokens_at_once=config.training.tokens_at_once or MOST_TOKENS_AT_ONCE,
            ),
            temperature=config.rollout.temperature,
            max_new_tokens=self._max_new_tokens,
            seed=self._seeds.getrandbits(31),
        )
        self._generator = Generator(self._model.call, NO_DEADLINE_SECONDS)
        self.state.weight_handle = IN_PROCESS
        self._buffer = replay_buffer(config)
        self._screens = text_screens(config)
        draws = sampler(
            config,
            self._buffer,
            load_rule(config.replay.sampler),
            random.Random(self._seeds.getrandbits(62)),
            self.peers.usefulness,
        )
        trainer = TrainerClient(self._model.call, NO_DEADLINE_SECONDS)
        self.train = TrainLoop(draws, trainer, config.node.rounds, self._note_round, self.peers.note_screened)

    def companions(self) -> list[Coroutine[Any, Any, None]]:
        """The loops beside training."""
        return [
            self._rollout().run(self.state),
            WeightsLoop(self._generator, _no_process, max_failures=1).run(self.state),
            self._receive().run(self.state),
        ]

    def result(self) -> SimulatedNode:
        """What became of the node."""
        views = self.peers.views(())
        return SimulatedNode(
            self.identity.peer_id,
            tuple(self.rounds),
            accepted={view.peer_id: view.accepted for view in views},
            rejected={view.peer_id: view.rejected for view in views},
            screened={view.peer_id: view.screened for view in views},
        )

    def _rollout(self) -> RolloutLoop:
        config = self.plan.config
        return RolloutLoop(
            peer_id=self.identity.peer_id,
            manifest=self.manifest,
            sampling=Sampling(
                group_size=config.rollout.group_size,
                batch_questions=config.rollout.batch_questions,
                max_new_tokens=self._max_new_tokens,
                temperature=config.rollout.temperature,
            ),
            pace=pace(config),
            # Streams follow the plan's seed and the node's number: the same plan asks the same questions.
            source=TaskSource(self.manifest, f"simulated-{self.number}", config.node.seed),
            generator=self._generator,
            verifier=self.verifier,
            buffer=self._buffer,
            publisher=self._publisher(),
            seeds=self._seeds,
            screens=self._screens,
        )

    def _publisher(self) -> Publisher:
        gossip = self.plan.config.gossip
        return Publisher(
            self.transport,
            Author(self.manifest.swarm_id, self.identity.public_key, self.identity.sign),
            self.manifest.group_limits(gossip.max_message_age_seconds, gossip.max_clock_skew_seconds),
            self.manifest.max_message_bytes,
            self.plan.config.model.name,
            self._model.tokenizer_fingerprint if gossip.share_logprobs else None,
            self._recent(),
        )

    def _receive(self) -> ReceiveLoop:
        config, manifest = self.plan.config, self.manifest
        gossip = config.gossip
        limits = manifest.group_limits(gossip.max_message_age_seconds, gossip.max_clock_skew_seconds)
        topic = rollouts_topic(manifest.swarm_id)
        subscriber = Subscriber(
            self.identity.peer_id,
            self.transport.subscribe(Subscription(topic, gossip.receive_queue_messages)),
            verify,
            manifest.envelope_limits(limits),
            limits,
            self.peers,
            self._recent(),
        )
        uses_logprobs = config.training.external == "f_tis"
        return ReceiveLoop(
            manifest=manifest,
            subscriber=subscriber,
            verifier=self.verifier,
            buffer=self._buffer,
            peers=self.peers,
            verifiers=1,
            screens=self._screens,
            tokenizer_fingerprint=self._model.tokenizer_fingerprint if uses_logprobs else None,
        )

    def _recent(self) -> RecentGroups:
        # Nobody joins late here, so nothing is held for catching up.
        return RecentGroups(capacity_groups=1, capacity_bytes=1, max_age_ms=1)

    async def _note_round(self, done: Round) -> None:
        batch = done.batch
        self.rounds.append(
            SimulatedRound(
                round=done.number,
                own_reward=self.state.local_mean,
                external_groups=batch.external,
                filled_groups=batch.filled,
                groups_with_signal=done.metrics.groups_with_signal,
            )
        )
        # The other nodes' turn.
        await asyncio.sleep(0)


def _no_process(name: str, reason: str) -> None:
    """A simulated node has no process that could be restarted, and no canary that would ask for it."""
    raise WorkerError(f"{name}: {reason}")
