"""The rollout loop: source.draw, prompt.render, generator.sample, verifier.score, then to the
buffer and to the peers. Asking, sampling and scoring are three stages that work at the same time, so
that the generator waits for no verifier. `replay.pace` says how far it runs before the trainer; it
pauses then, and never skips a question because its answer took long.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from swarmd.errors import WorkerError
from swarmd.generation.generator import Generator, is_finite
from swarmd.generation.messages import SampleRequest
from swarmd.gossip.publisher import Publisher
from swarmd.loops.state import FAILURE_PAUSE_SECONDS, Clock, LoopState
from swarmd.replay.buffer import ReplayBuffer
from swarmd.replay.pace import Pace
from swarmd.replay.screens import TextScreens
from swarmd.rewards.verifier import VerifierPool
from swarmd.tasks.manifest import Manifest
from swarmd.tasks.prompt import render
from swarmd.tasks.source import TaskSource
from swarmd.types import Prompt, RolloutGroup, SampledGroup, TaskReference, size_in_bytes

LOOP = "rollout"
NOT_FINITE = "not_finite"
"""Why a group is refused, and the name of the problem that follows."""


@dataclass(frozen=True)
class Sampling:
    """How the node samples."""

    group_size: int
    batch_questions: int
    max_new_tokens: int
    temperature: float


@dataclass(frozen=True)
class Question:
    """A task and how the policy is asked."""

    reference: TaskReference
    prompt: Prompt


@dataclass(frozen=True)
class Answered:
    """A question and what was sampled for it."""

    question: Question
    sampled: SampledGroup


@dataclass(frozen=True)
class RolloutLoop:
    """Samples groups for the node's own tasks and hands them to buffer and peers."""

    peer_id: str
    manifest: Manifest
    sampling: Sampling
    pace: Pace
    source: TaskSource
    generator: Generator
    verifier: VerifierPool
    buffer: ReplayBuffer
    publisher: Publisher | None
    """None for a node that is alone."""
    seed_of: Callable[[int], int]
    """Of a sampling call, by the position of its first task: what a stop cut short comes out the same."""
    screens: TextScreens | None = None
    """Told what own completions look like."""

    async def run(self, state: LoopState) -> None:
        """Sample for ever. A worker that fails costs the groups it had; it is restarted meanwhile."""
        asked: asyncio.Queue[Question] = asyncio.Queue(self.sampling.batch_questions)
        answered: asyncio.Queue[list[Answered]] = asyncio.Queue(1)
        async with asyncio.TaskGroup() as stages:
            stages.create_task(self._ask(asked))
            stages.create_task(self._sample(asked, answered, state))
            stages.create_task(self._score(answered, state))

    async def answer(self, count: int, state: LoopState) -> list[RolloutGroup]:
        """Ask, sample and score `count` questions, one stage after the other; `hand_on` is what follows.
        For who decides alone when that is, as a simulation does.

        Raises WorkerError when sampling fails.
        """
        questions = await self._questions(count)
        sampled = await self._generate(questions, state)
        pairs = zip(questions, sampled, strict=True)
        return await self._rewarded(self._finite([Answered(*pair) for pair in pairs], state), state)

    async def hand_on(self, groups: list[RolloutGroup], state: LoopState) -> None:
        """Give groups to buffer and peers, in their order."""
        for group in groups:
            self.buffer.add_local(group)
        state.notify()
        if self.publisher is not None:
            await self._publish(groups, self.publisher, state)

    async def _ask(self, asked: asyncio.Queue[Question]) -> None:
        """Draw tasks and render their questions, ahead of sampling."""
        while True:
            questions = await self._questions(self.sampling.batch_questions)
            for question in questions:
                await asked.put(question)
            if not questions:
                # A verifier that has stopped for good refuses at once, again and again.
                await asyncio.sleep(FAILURE_PAUSE_SECONDS)

    async def _questions(self, count: int) -> list[Question]:
        """The next `count` tasks, less those that cannot be regenerated."""
        references = self.source.draw(count)
        questions = await self.verifier.regenerate(references)
        return [
            Question(reference, render(question, self.manifest))
            for reference, question in zip(references, questions, strict=True)
            if question is not None
        ]

    async def _sample(
        self, asked: asyncio.Queue[Question], answered: asyncio.Queue[list[Answered]], state: LoopState
    ) -> None:
        """G completions for each question, a batch of questions at a time or as many as may be begun."""
        ready: list[Question] = []
        while True:
            while len(ready) < self.sampling.batch_questions:
                ready.append(await asked.get())
            await state.until(LOOP, lambda: self._room(state) > 0, lambda: self._waits_for(state))
            count = min(self._room(state), len(ready))
            questions, ready = ready[:count], ready[count:]
            assert state.served_version is not None
            state.in_flight += [state.served_version] * count
            try:
                sampled = await self._generate(questions, state)
            except WorkerError as error:
                # The newest in flight are these: scoring goes on with older ones.
                del state.in_flight[-count:]
                await state.note_failure(LOOP, error)
                continue
            state.problems.pop(LOOP, None)
            pairs = zip(questions, sampled, strict=True)
            await answered.put(self._finite([Answered(*pair) for pair in pairs], state))

    def _finite(self, sampled: list[Answered], state: LoopState) -> list[Answered]:
        """Those whose log-probabilities are numbers. The others are refused and counted, and nothing more
        is sampled until the weights loop has seen to it.
        """
        finite = [one for one in sampled if is_finite(one.sampled)]
        refused = len(sampled) - len(finite)
        state.canary.note_sampled(is_finite=not refused)
        if refused:
            del state.in_flight[-refused:]
            state.refused[NOT_FINITE] = state.refused.get(NOT_FINITE, 0) + refused
            state.served_version = None
            state.notify()
        else:
            state.problems.pop(NOT_FINITE, None)
        return finite

    def _room(self, state: LoopState) -> int:
        """How many groups may be begun now."""
        if state.served_version is None:
            return 0
        room = self.pace.room(self._ahead(state), state.served_version, state.next_version)
        if self.pace.max_policy_lag or state.missing is None:
            return room
        # What is begun now has to be in the next batch: more than it lacks would drive out peers' groups.
        return max(0, min(room, state.missing - len(state.in_flight)))

    def _ahead(self, state: LoopState) -> int:
        return len(self.buffer.local_versions()) + len(state.in_flight)

    def _waits_for(self, state: LoopState) -> str:
        if state.served_version is not None and self._ahead(state):
            return "the trainer to use waiting groups"
        return "the trainer's step" if state.is_stepping else "the policy to be loaded"

    async def _generate(self, questions: list[Question], state: LoopState) -> tuple[SampledGroup, ...]:
        reply = await self.generator.sample(
            SampleRequest(
                prompts=tuple(question.prompt for question in questions),
                group_size=self.sampling.group_size,
                max_new_tokens=self.sampling.max_new_tokens,
                temperature=self.sampling.temperature,
                seed=self.seed_of(questions[0].reference.index if questions else 0),
            )
        )
        state.generated_tokens += reply.generated_tokens
        return reply.groups

    async def _score(self, answered: asyncio.Queue[list[Answered]], state: LoopState) -> None:
        """Give rewards, and hand the groups to buffer and peers in the order they were sampled in."""
        while True:
            batch = await answered.get()
            groups = await self._rewarded(batch, state)
            del state.in_flight[: len(batch)]
            if batch:
                state.task_position = batch[-1].question.reference.index + 1
            await self.hand_on(groups, state)

    async def _rewarded(self, batch: list[Answered], state: LoopState) -> list[RolloutGroup]:
        """Those that could be scored, in their order. All of them are booked, whatever becomes of them."""
        scored = await asyncio.gather(*(self._score_one(one, state.clock) for one in batch))
        groups = [group for group in scored if group is not None]
        for group in groups:
            state.note_own(group)
            if self.screens is not None:
                self.screens.note_own(group)
        return groups

    async def _score_one(self, answered: Answered, clock: Clock) -> RolloutGroup | None:
        question, completions_G = answered.question, answered.sampled.completions_G
        texts_G = tuple(completion.text for completion in completions_G)
        score = await self.verifier.score(question.reference, texts_G)
        if score.question is None:
            # The verifier could not do its work; rewards of 0 would teach that the answers were wrong.
            return None
        return RolloutGroup(
            group_id=secrets.token_hex(16),
            author=self.peer_id,
            is_local=True,
            task=question.reference,
            prompt=question.prompt,
            completions_G=completions_G,
            rewards_G=score.rewards_G,
            policy_version=answered.sampled.policy_version,
            created_at=clock.wall(),
            received_at=clock.monotonic(),
            size_bytes=size_in_bytes(question.prompt, completions_G),
        )

    async def _publish(self, groups: list[RolloutGroup], publisher: Publisher, state: LoopState) -> None:
        for group in groups:
            reason = await publisher.publish(group)
            if reason is not None:
                state.unpublished[reason] = state.unpublished.get(reason, 0) + 1
