"""The rooms of a running node, introduced to each other: here the loops get what they work with."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from swarmd.config import Config
from swarmd.loops.evaluate import EvaluateLoop
from swarmd.loops.receive import ReceiveLoop
from swarmd.loops.rollout import RolloutLoop, Sampling
from swarmd.loops.state import LoopState
from swarmd.loops.train import Round, TrainLoop
from swarmd.loops.weights import WeightsLoop
from swarmd.processes import Processes
from swarmd.replay.adaptive import AdaptiveMix, MixLimits
from swarmd.replay.buffer import ReplayBuffer
from swarmd.replay.pace import Pace
from swarmd.replay.rules import Rule
from swarmd.replay.sampler import Sampler
from swarmd.replay.screens import BatchShare, TextLimits, TextScreens
from swarmd.tasks.manifest import Manifest
from swarmd.tasks.source import TaskSource, held_out_tasks

if TYPE_CHECKING:
    from swarmd.network import Network


def pace(config: Config) -> Pace:
    """How far sampling may run before training, by `schedule.mode`."""
    replay, schedule = config.replay, config.schedule
    if schedule.mode == "synchronous":
        return Pace.synchronous(replay.local_groups, replay.external_groups)
    least = replay.local_groups + replay.external_groups
    max_ahead = schedule.max_ahead or least + config.rollout.batch_questions
    return Pace(replay.local_groups, replay.external_groups, max_ahead, replay.max_policy_lag)


def replay_buffer(config: Config, clock: Callable[[], float] = time.monotonic) -> ReplayBuffer:
    """The buffer, empty."""
    replay = config.replay
    return ReplayBuffer(
        capacity_groups=replay.capacity_groups,
        capacity_bytes=replay.capacity_bytes,
        peer_share=replay.peer_share,
        max_age_seconds=replay.max_age_seconds,
        max_policy_lag=replay.max_policy_lag,
        max_uses=replay.max_uses,
        clock=clock,
    )


def sampler(
    config: Config,
    buffer: ReplayBuffer,
    rule: Rule,
    generator: random.Random,
    usefulness: Callable[[str], float | None],
) -> Sampler:
    """What draws the batches. `rule` is the one that the configuration names, loaded."""
    replay = config.replay
    batch_groups = replay.local_groups + replay.external_groups
    most = replay.adaptive_most or batch_groups * 3 // 4
    limits = MixLimits(min(replay.adaptive_least, most), most, replay.adaptive_spread)
    return Sampler(
        buffer,
        pace(config),
        generator,
        batch_share(config),
        rule=rule,
        usefulness=usefulness,
        mix=AdaptiveMix(limits, replay.external_groups) if replay.adaptive else None,
    )


def batch_share(config: Config) -> BatchShare:
    """How much of a batch may be one peer's."""
    return BatchShare(config.screens.batch_share, config.screens.batch_share_most)


def text_limits(config: Config) -> TextLimits:
    """When the text of a peer's group is held up."""
    screens = config.screens
    return TextLimits(screens.long, screens.long_factor, screens.repetitive, screens.repetitive_below)


def text_screens(config: Config) -> TextScreens:
    """The screens on the text of peers' groups."""
    return TextScreens(text_limits(config))


@dataclass(frozen=True)
class Rooms:
    """What the loops of one node work with."""

    config: Config
    peer_id: str
    manifest: Manifest
    processes: Processes
    buffer: ReplayBuffer
    source: TaskSource
    network: Network | None
    """None for a node that is alone."""
    rule: Rule
    """Which peers' groups to learn from."""
    _followers: list[Callable[[Config], None]] = field(default_factory=list)
    """What takes over a configuration that was read again."""

    def renew(self, config: Config) -> None:
        """Take over what can change while the loops run: `config_renewal` has the keys."""
        for follow in self._followers:
            follow(config)

    def train_loop(self, on_round: Callable[[Round], Awaitable[None]]) -> TrainLoop:
        """The loop that the node's rounds are counted by."""
        trainer, rounds = self.processes.trainer, self.config.node.rounds
        generator = self._random("replay")
        if self.network is None:
            alone = sampler(self.config, self.buffer, self.rule, generator, lambda author: None)
            return TrainLoop(alone, trainer, rounds, on_round)
        peers = self.network.peers
        shared = sampler(self.config, self.buffer, self.rule, generator, peers.usefulness)
        self._followers.append(lambda config: setattr(shared, "share", batch_share(config)))
        return TrainLoop(shared, trainer, rounds, on_round, peers.note_screened)

    def companions(self, state: LoopState, tokenizer_fingerprint: str) -> list[Coroutine[Any, Any, None]]:
        """Everything that goes on beside training."""
        screens = text_screens(self.config)
        self._followers.append(lambda config: setattr(screens, "limits", text_limits(config)))
        loops = [
            self._rollout_loop(tokenizer_fingerprint, screens).run(state),
            WeightsLoop(
                self.processes.generator, self.processes.restart, self.config.workers.max_fast_failures
            ).run(state),
        ]
        evaluate = self._evaluate_loop()
        self._followers.append(
            lambda config: setattr(evaluate, "every_rounds", config.schedule.eval_every_rounds)
        )
        loops.append(evaluate.run(state))
        if self.network is not None:
            receive = self._receive_loop(self.network, tokenizer_fingerprint, screens)
            loops += [receive.run(state), self.network.run()]
        return loops

    def _rollout_loop(self, tokenizer_fingerprint: str, screens: TextScreens) -> RolloutLoop:
        config = self.config
        return RolloutLoop(
            peer_id=self.peer_id,
            manifest=self.manifest,
            sampling=Sampling(
                group_size=config.rollout.group_size,
                batch_questions=config.rollout.batch_questions,
                max_new_tokens=self.processes.max_new_tokens,
                temperature=config.rollout.temperature,
            ),
            pace=pace(config),
            source=self.source,
            generator=self.processes.generator,
            verifier=self.processes.verifier,
            buffer=self.buffer,
            publisher=self.network.publisher(tokenizer_fingerprint) if self.network else None,
            seed_of=self._sampling_seed,
            screens=screens,
        )

    def _evaluate_loop(self) -> EvaluateLoop:
        schedule = self.config.schedule
        first, end = self.manifest.held_out
        # One that never evaluates is not refused for holding out little.
        count = schedule.eval_tasks if schedule.eval_every_rounds else min(schedule.eval_tasks, end - first)
        return EvaluateLoop(
            manifest=self.manifest,
            tasks=held_out_tasks(self.manifest, count),
            every_rounds=schedule.eval_every_rounds,
            max_new_tokens=self.processes.max_new_tokens,
            generator=self.processes.generator,
            verifier=self.processes.verifier,
        )

    def _receive_loop(
        self, network: Network, tokenizer_fingerprint: str, screens: TextScreens
    ) -> ReceiveLoop:
        uses_logprobs = self.config.training.external == "f_tis"
        return ReceiveLoop(
            manifest=self.manifest,
            subscriber=network.subscriber,
            verifier=self.processes.verifier,
            buffer=self.buffer,
            peers=network.peers,
            verifiers=self.config.rewards.verifiers,
            shares=network.shares,
            screens=screens,
            tokenizer_fingerprint=tokenizer_fingerprint if uses_logprobs else None,
        )

    def _sampling_seed(self, position: int) -> int:
        seed = self.config.node.seed
        return random.Random(f"{self.peer_id}/{seed}/sampling/{position}").getrandbits(62)

    def _random(self, purpose: str) -> random.Random:
        """A generator of this node's own, another one for each purpose and each run."""
        seed = self.config.node.seed
        return random.Random(f"{self.peer_id}/{seed}/{purpose}/{self.source.position}")
