"""The evaluation loop: every so many rounds the policy answers the held-out tasks, one answer
each, the most likely one unless a temperature is given. These tasks are the same for all nodes and
never trained on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from swarmd.errors import WorkerError
from swarmd.generation.generator import Generator, is_finite
from swarmd.generation.messages import SampleRequest
from swarmd.loops.state import LoopState
from swarmd.rewards.verifier import VerifierPool
from swarmd.tasks.manifest import Manifest
from swarmd.tasks.prompt import render
from swarmd.types import Prompt, TaskReference

LOOP = "evaluate"
BATCH_TASKS = 8
"""Tasks asked in one call, so that rollouts can go in between."""

Asked = tuple[TaskReference, Prompt]


@dataclass
class EvaluateLoop:
    """Measures reward on held-out tasks."""

    manifest: Manifest
    tasks: tuple[TaskReference, ...]
    every_rounds: int
    """0: never. May be changed at any time."""
    max_new_tokens: int
    generator: Generator
    verifier: VerifierPool
    temperature: float = 0.0
    """0: greedy."""
    batch_tasks: int = BATCH_TASKS

    async def run(self, state: LoopState) -> None:
        """Evaluate at once where that was never done, and then every `every_rounds` rounds."""
        asked: tuple[Asked, ...] = ()
        due_since = 0 if state.eval_reward is None else state.round + 1
        while True:
            await self._until_due(state, due_since)
            # A generator that has just been started holds the model as it came, not the policy.
            await state.until(LOOP, lambda: state.served_version is not None, lambda: "the policy")
            try:
                asked = asked or await ask(self.tasks, self.manifest, self.verifier)
                rewards = await self.evaluate(asked)
                state.eval_reward = sum(rewards) / max(1, len(rewards))
                state.evaluations += 1
            except WorkerError as error:
                await state.note_failure(LOOP, error)
            else:
                state.problems.pop(LOOP, None)
            state.notify()
            due_since = state.round + 1

    async def _until_due(self, state: LoopState, first_round: int) -> None:
        """Return at a multiple of `every_rounds` that is `first_round` or later, or when one has passed."""

        def due_round() -> int:
            every = self.every_rounds
            return -(-first_round // every) * every

        await state.until(
            LOOP,
            lambda: self.every_rounds > 0 and state.round >= due_round(),
            lambda: f"round {due_round()}" if self.every_rounds else "nothing",
        )

    async def evaluate(self, asked: tuple[Asked, ...]) -> list[float]:
        """The reward of one answer to each task. Raises WorkerError."""
        rewards: list[float] = []
        for start in range(0, len(asked), self.batch_tasks):
            batch = asked[start : start + self.batch_tasks]
            sampled = await self.generator.sample(
                SampleRequest(
                    prompts=tuple(prompt for _, prompt in batch),
                    group_size=1,
                    max_new_tokens=self.max_new_tokens,
                    temperature=self.temperature,
                    seed=start,
                )
            )
            if not all(map(is_finite, sampled.groups)):
                raise WorkerError("the generator's log-probabilities are not finite: no evaluation")
            scores = await asyncio.gather(
                *(
                    self.verifier.score(reference, (group.completions_G[0].text,))
                    for (reference, _), group in zip(batch, sampled.groups, strict=True)
                )
            )
            rewards += [score.rewards_G[0] for score in scores]
        return rewards


async def ask(
    tasks: Sequence[TaskReference], manifest: Manifest, verifier: VerifierPool
) -> tuple[Asked, ...]:
    """The tasks with their questions, less those that cannot be regenerated."""
    questions = await verifier.regenerate(tasks)
    return tuple(
        (reference, render(question, manifest))
        for reference, question in zip(tasks, questions, strict=True)
        if question is not None
    )
