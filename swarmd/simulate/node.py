"""One simulated node: the rooms of a daemon, and a round in which their work comes one after the other.

In the first half of a round the node samples its own groups; then it shares them; at the end it draws a
batch of what is there by then, trains, and serves the new policy. What the rooms do is what they do in a
daemon; only when they do it is decided here.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
from swarmd_protocol.topics import rollouts_topic

from swarmd.errors import WorkerError
from swarmd.generation.generator import Generator
from swarmd.gossip.catch_up import RecentGroups
from swarmd.gossip.memory import InMemoryNetwork
from swarmd.gossip.peers import PeerBook
from swarmd.gossip.publisher import Author, Publisher
from swarmd.gossip.subscriber import Subscriber
from swarmd.gossip.subscription import Subscription
from swarmd.identity import Identity, verify
from swarmd.loops.evaluate import Asked, EvaluateLoop
from swarmd.loops.receive import ReceiveLoop
from swarmd.loops.rollout import RolloutLoop, Sampling
from swarmd.loops.state import Clock, LoopState
from swarmd.loops.train import Round, TrainLoop
from swarmd.models.placement import MOST_TOKENS_AT_ONCE
from swarmd.models.resolve import resolve
from swarmd.replay.samplers import load_rule
from swarmd.rewards.verifier import VerifierPool
from swarmd.rooms import pace, replay_buffer, sampler, text_screens
from swarmd.simulate.hostile import altered, copied
from swarmd.simulate.in_process import IN_PROCESS, InProcessModel
from swarmd.simulate.ledger import Ledger, mean
from swarmd.simulate.plan import NodePlan, SwarmPlan
from swarmd.simulate.rows import Row
from swarmd.tasks.manifest import Manifest
from swarmd.tasks.source import TaskSource
from swarmd.training.client import TrainerClient
from swarmd.training.messages import TrainingOptions
from swarmd.types import Completion, RolloutGroup

__all__ = ["Node", "Surroundings"]

NO_DEADLINE_SECONDS = 3600.0
SAMPLING_PART = 0.5
"""Part of a round after which the own groups are there."""
MOST_ROUNDS = 10
"""A node whose budget is not in rounds gives up after this many times as many."""


@dataclass(frozen=True)
class Surroundings:
    """What the nodes of one swarm have in common."""

    plan: SwarmPlan
    manifest: Manifest
    network: InMemoryNetwork
    verifier: VerifierPool
    clock: Clock
    asked: tuple[Asked, ...]
    """The held-out questions."""


class Node:
    """The rooms of one node."""

    def __init__(self, around: Surroundings, number: int, plan: NodePlan) -> None:
        self.number = number
        self.plan = plan
        swarm = around.plan
        self._around = around
        self._config = swarm.node_config()
        # The same in all arms of a seed, and far from that of every other node and seed.
        self._name = _name(swarm, number)
        self.identity = _identity(self._name)
        self.peers = PeerBook(self.identity.peer_id, clock=around.clock.monotonic)
        self._state = LoopState(clock=around.clock, weight_handle=IN_PROCESS)
        self._transport = around.network.transport(self.identity.peer_id)
        self._max_new_tokens = self._config.rollout.max_new_tokens or around.manifest.max_new_tokens
        model = resolve(plan.model or self._config.model.name)
        self._model_name = model.name
        self._model = InProcessModel(
            model.path,
            TrainingOptions(
                **self._config.training.options(),
                tokens_at_once=self._config.training.tokens_at_once or MOST_TOKENS_AT_ONCE,
            ),
            temperature=self._config.rollout.temperature,
            max_new_tokens=self._max_new_tokens,
            seed=self._random("model").getrandbits(31),
        )
        self._generator = Generator(self._model.call, NO_DEADLINE_SECONDS)
        self._buffer = replay_buffer(self._config, around.clock.monotonic)
        self._screens = text_screens(self._config)
        self._sampler = sampler(
            self._config,
            self._buffer,
            load_rule(self._config.replay.sampler),
            self._random("replay"),
            self.peers.usefulness,
        )
        self._train = TrainLoop(
            self._sampler,
            TrainerClient(self._model.call, NO_DEADLINE_SECONDS),
            rounds=0,
            on_round=self._note_round,
            note_screened=self.peers.note_screened,
        )
        self._rollout = self._rollout_loop()
        self._evaluation = self._evaluate_loop()
        self._ledger = Ledger(number, self.kind, self._model_name, self._state, self._model)
        self._mischief = self._random("mischief")

    @property
    def rows(self) -> tuple[Row, ...]:
        """What its rounds brought so far."""
        return tuple(self._ledger.rows)

    @property
    def kind(self) -> str:
        """As rows have it."""
        return "late" if self.plan.kind == "honest" and self.plan.joins else self.plan.kind

    @property
    def _shares(self) -> bool:
        if self.plan.learns and not self._around.plan.learners_share:
            return False
        return self.plan.kind != "silent"

    @property
    def _hears(self) -> bool:
        """Whether anything of a peer would ever be used here."""
        draws = self._sampler.pace.external_groups > 0 or self._config.replay.adaptive
        return (self.plan.learns and draws) or self.plan.kind == "copier"

    async def run(self) -> None:
        """From joining to the last round."""
        await asyncio.sleep(self.plan.joins)
        async with self._transport, asyncio.TaskGroup() as group:
            receiving = group.create_task(self._receive_loop().run(self._state)) if self._hears else None
            await self._load_weights()
            if self._around.plan.held_out.every:
                await self._evaluate_and_note(0)
            for number in self._rounds():
                await self._round(number)
            if receiving is not None:
                receiving.cancel()

    def _rounds(self) -> Iterator[int]:
        """Numbers of the rounds to do, while there is something left of the budget."""
        swarm, plan = self._around.plan, self.plan
        if swarm.budget == "rounds":
            yield from range(1, int((swarm.rounds - plan.joins) * plan.speed + 1e-9) + 1)
            return
        groups = swarm.rounds * self._sampler.pace.batch_groups
        for number in range(1, MOST_ROUNDS * swarm.rounds + 1):
            ledger = self._ledger
            if ledger.updates >= swarm.rounds if swarm.budget == "updates" else ledger.generated >= groups:
                return
            yield number

    async def _round(self, number: int) -> None:
        seconds = 1 / self.plan.speed
        loop = asyncio.get_running_loop()
        # Counted from the start, so that nodes of equal speed never drift apart.
        begun = self.plan.joins + (number - 1) * seconds
        # Whether more stand in for external ones is known at the end of the round.
        groups = await self._sample(self._sampler.pace.local_groups)
        await asyncio.sleep(begun + SAMPLING_PART * seconds - loop.time())
        await self._rollout.hand_on(self._as_shared(groups), self._state)
        await asyncio.sleep(begun + seconds - loop.time())
        await self._learn()
        if self._is_due(number):
            await self._evaluate_and_note(number)
        else:
            self._ledger.close(number)

    def _as_shared(self, groups: list[RolloutGroup]) -> list[RolloutGroup]:
        """What the node publishes of its groups: those of an honest one as they are."""
        if self.plan.kind == "copier":
            heard = self._buffer.drawable()
            for group in heard:
                self._buffer.mark_drawn(group)
            return copied(heard, self.identity.peer_id, self._mischief)
        return [altered(self.plan.kind, group, self._mischief) for group in groups]

    async def _sample(self, count: int) -> list[RolloutGroup]:
        """Own groups to learn from: `count`, or what the bound of redrawing leaves of them."""
        groups = await self._answer(count)
        most = count * self._around.plan.redraw
        asked = count
        while asked < most and (lacking := count - sum(group.has_signal for group in groups)) > 0:
            lacking = min(lacking, most - asked)
            asked += lacking
            groups += await self._answer(lacking)
        # Those with signal first; where there are too few, the batch keeps its size all the same.
        return sorted(groups, key=lambda group: not group.has_signal)[:count] if most else groups

    async def _answer(self, count: int) -> list[RolloutGroup]:
        if not count:
            return []
        groups = await self._rollout.answer(count, self._state)
        if not groups:
            raise WorkerError(f"node {self.number} sampled {count} groups, and none could be scored")
        self._ledger.note_own(groups)
        return groups

    async def _learn(self) -> None:
        """Fill the batch, train on it, serve the new policy."""
        if not self.plan.learns:
            self._buffer.take_local(len(self._buffer.local_versions()))
            self._state.close_round()
            return
        while missing := self._sampler.missing(self._state.policy_version):
            await self._rollout.hand_on(await self._sample(missing), self._state)
        await self._train.turn(self._state)
        await self._load_weights()
        if self._around.plan.replay_own:
            for group in self._ledger.own:
                self._buffer.add_external(_as_if_heard(group))

    async def _load_weights(self) -> None:
        version = self._state.policy_version
        self._state.served_version = await self._generator.load_weights(IN_PROCESS, version)

    async def _note_round(self, done: Round) -> None:
        self._ledger.note_trained(done)

    def _is_due(self, number: int) -> bool:
        every = self._around.plan.held_out.every
        return bool(every) and number % every == 0

    async def _evaluate_and_note(self, number: int) -> None:
        rewards = await self._evaluation.evaluate(self._around.asked)
        self._state.eval_reward = mean(rewards)
        self._state.evaluations += 1
        datasets = (reference.dataset for reference, _ in self._around.asked)
        self._ledger.close(number, tuple(zip(datasets, rewards, strict=True)))

    def _random(self, purpose: str) -> random.Random:
        return random.Random(f"{self._name}/{purpose}")

    def _rollout_loop(self) -> RolloutLoop:
        config, manifest = self._config, self._around.manifest
        seeds = self._random("sampling")
        return RolloutLoop(
            peer_id=self.identity.peer_id,
            manifest=manifest,
            sampling=Sampling(
                group_size=config.rollout.group_size,
                batch_questions=config.rollout.batch_questions,
                max_new_tokens=self._max_new_tokens,
                temperature=config.rollout.temperature,
            ),
            pace=pace(config),
            source=TaskSource(_reweighted(manifest, self.plan.tasks), self._name, self._around.plan.seed),
            generator=self._generator,
            verifier=self._around.verifier,
            buffer=self._buffer,
            publisher=self._publisher() if self._shares else None,
            seed_of=lambda position: seeds.getrandbits(62),
            screens=self._screens,
        )

    def _evaluate_loop(self) -> EvaluateLoop:
        held_out = self._around.plan.held_out
        return EvaluateLoop(
            manifest=self._around.manifest,
            tasks=tuple(reference for reference, _ in self._around.asked),
            every_rounds=held_out.every,
            max_new_tokens=self._max_new_tokens,
            generator=self._generator,
            verifier=self._around.verifier,
            temperature=held_out.temperature,
            batch_tasks=max(1, held_out.tasks),
        )

    def _publisher(self) -> Publisher:
        gossip, manifest = self._config.gossip, self._around.manifest
        named = self.identity
        if self.plan.kind == "forger":
            named = _identity(_name(self._around.plan, 0))
        return Publisher(
            self._transport,
            Author(manifest.swarm_id, named.public_key, self.identity.sign),
            manifest.group_limits(gossip.max_message_age_seconds, gossip.max_clock_skew_seconds),
            manifest.max_message_bytes,
            self._model_name,
            self._model.tokenizer_fingerprint if gossip.share_logprobs else None,
            _nothing_to_catch_up(),
            self._around.clock.wall,
        )

    def _receive_loop(self) -> ReceiveLoop:
        around, gossip = self._around, self._config.gossip
        limits = around.manifest.group_limits(gossip.max_message_age_seconds, gossip.max_clock_skew_seconds)
        topic = rollouts_topic(around.manifest.swarm_id)
        subscriber = Subscriber(
            self.identity.peer_id,
            self._transport.subscribe(Subscription(topic, gossip.receive_queue_messages)),
            verify,
            around.manifest.envelope_limits(limits),
            limits,
            self.peers,
            _nothing_to_catch_up(),
            wall_clock=around.clock.wall,
            clock=around.clock.monotonic,
        )
        uses_logprobs = self._config.training.external == "f_tis"
        return ReceiveLoop(
            manifest=around.manifest,
            subscriber=subscriber,
            verifier=around.verifier,
            buffer=self._buffer,
            peers=self.peers,
            verifiers=1,
            screens=self._screens,
            tokenizer_fingerprint=self._model.tokenizer_fingerprint if uses_logprobs else None,
        )


def _name(swarm: SwarmPlan, number: int) -> str:
    """What everything by chance in one node begins with."""
    return f"simulated {swarm.seed}/{number}"


def _identity(name: str) -> Identity:
    return Identity.of_seed(hashlib.sha256(name.encode()).digest())


def _as_if_heard(group: RolloutGroup) -> RolloutGroup:
    """An own group as a peer's would come: text, and the log-probabilities of who sampled it."""
    completions_G = tuple(
        Completion(completion.text, completion.finish_reason, logprobs_T=completion.logprobs_T)
        for completion in group.completions_G
    )
    return msgspec.structs.replace(group, is_local=False, completions_G=completions_G)


def _reweighted(manifest: Manifest, weights: dict[str, float]) -> Manifest:
    """The manifest with only the datasets named, so weighted."""
    if not weights:
        return manifest
    entries = tuple(
        msgspec.structs.replace(entry, weight=weights[entry.dataset])
        for entry in manifest.entries
        if weights.get(entry.dataset)
    )
    return msgspec.structs.replace(manifest, entries=entries)


def _nothing_to_catch_up() -> RecentGroups:
    return RecentGroups(capacity_groups=1, capacity_bytes=1, max_age_ms=1)
