"""The rollout loop: source.draw, prompt.render, generator.sample, verifier.score, then to the
buffer and to the peers. It runs at most `max_ahead` groups before the trainer, and never skips a
question because its answer took long.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from dataclasses import dataclass

from swarmd.errors import WorkerError
from swarmd.generation.generator import Generator
from swarmd.generation.messages import SampleRequest
from swarmd.gossip.publisher import Publisher
from swarmd.loops.state import LoopState
from swarmd.replay.buffer import ReplayBuffer
from swarmd.rewards.verifier import VerifierPool
from swarmd.tasks.manifest import Manifest
from swarmd.tasks.prompt import render
from swarmd.tasks.source import TaskSource
from swarmd.types import Prompt, RolloutGroup, SampledGroup, TaskReference, size_in_bytes

LOOP = "rollout"


@dataclass(frozen=True)
class Sampling:
    """How the node samples."""

    group_size: int
    batch_questions: int
    max_new_tokens: int
    temperature: float
    max_ahead: int


@dataclass(frozen=True)
class RolloutLoop:
    """Samples groups for the node's own tasks and hands them to buffer and peers."""

    peer_id: str
    manifest: Manifest
    sampling: Sampling
    source: TaskSource
    generator: Generator
    verifier: VerifierPool
    buffer: ReplayBuffer
    publisher: Publisher | None
    """None for a node that is alone."""
    seeds: random.Random

    async def run(self, state: LoopState) -> None:
        """Sample for ever. A worker that fails costs the groups in flight; it is restarted meanwhile."""
        while True:
            await state.until(LOOP, lambda: self._may_sample(state), lambda: self._waits_for(state))
            try:
                groups = await self._sample(state)
            except WorkerError as error:
                await state.note_failure(LOOP, error)
                continue
            state.problems.pop(LOOP, None)
            for group in groups:
                state.note_own(group)
                self.buffer.add_local(group)
            state.notify()
            if self.publisher is not None:
                await self._publish(groups, self.publisher, state)

    def _may_sample(self, state: LoopState) -> bool:
        return (
            state.served_version is not None
            and self.buffer.local_waiting(state.policy_version) < self.sampling.max_ahead
        )

    def _waits_for(self, state: LoopState) -> str:
        if state.served_version is None:
            return "the policy to be loaded"
        return "the trainer to use waiting groups"

    async def _sample(self, state: LoopState) -> list[RolloutGroup]:
        """One batch of questions, G completions each, scored."""
        asked = await self._ask()
        sampled = await self.generator.sample(
            SampleRequest(
                prompts=tuple(prompt for _, prompt in asked),
                group_size=self.sampling.group_size,
                max_new_tokens=self.sampling.max_new_tokens,
                temperature=self.sampling.temperature,
                seed=self.seeds.getrandbits(62),
            )
        )
        state.generated_tokens += sampled.generated_tokens
        scored = await asyncio.gather(
            *(
                self._score(reference, prompt, group)
                for (reference, prompt), group in zip(asked, sampled.groups, strict=True)
            )
        )
        return [group for group in scored if group is not None]

    async def _ask(self) -> list[tuple[TaskReference, Prompt]]:
        """Draw tasks and render their questions."""
        references = self.source.draw(self.sampling.batch_questions)
        questions = await self.verifier.regenerate(references)
        return [
            (reference, render(question, self.manifest))
            for reference, question in zip(references, questions, strict=True)
            if question is not None
        ]

    async def _score(
        self, reference: TaskReference, prompt: Prompt, sampled: SampledGroup
    ) -> RolloutGroup | None:
        texts_G = tuple(completion.text for completion in sampled.completions_G)
        score = await self.verifier.score(reference, texts_G)
        if score.question is None:
            # The verifier could not do its work; rewards of 0 would teach that the answers were wrong.
            return None
        return RolloutGroup(
            group_id=secrets.token_hex(16),
            author=self.peer_id,
            is_local=True,
            task=reference,
            prompt=prompt,
            completions_G=sampled.completions_G,
            rewards_G=score.rewards_G,
            policy_version=sampled.policy_version,
            created_at=time.time(),
            received_at=time.monotonic(),
            size_bytes=size_in_bytes(prompt, sampled.completions_G),
        )

    async def _publish(self, groups: list[RolloutGroup], publisher: Publisher, state: LoopState) -> None:
        for group in groups:
            reason = await publisher.publish(group)
            if reason is not None:
                state.unpublished[reason] = state.unpublished.get(reason, 0) + 1
