"""The evaluation loop: every so many rounds the policy answers the held-out tasks, one greedy answer
each. These tasks are the same for all nodes and never trained on.
"""

from __future__ import annotations

import asyncio
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

    async def run(self, state: LoopState) -> None:
        """Evaluate before the first round and then every `every_rounds` rounds."""
        asked: list[tuple[TaskReference, Prompt]] = []
        due_since = state.round
        while True:
            await self._until_due(state, due_since)
            # A generator that has just been started holds the model as it came, not the policy.
            await state.until(LOOP, lambda: state.served_version is not None, lambda: "the policy")
            try:
                asked = asked or await self._ask()
                state.eval_reward = await self._evaluate(asked)
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

    async def _ask(self) -> list[tuple[TaskReference, Prompt]]:
        questions = await self.verifier.regenerate(self.tasks)
        return [
            (reference, render(question, self.manifest))
            for reference, question in zip(self.tasks, questions, strict=True)
            if question is not None
        ]

    async def _evaluate(self, asked: list[tuple[TaskReference, Prompt]]) -> float:
        """Mean reward of one greedy answer to each task."""
        total = 0.0
        for start in range(0, len(asked), BATCH_TASKS):
            batch = asked[start : start + BATCH_TASKS]
            sampled = await self.generator.sample(
                SampleRequest(
                    prompts=tuple(prompt for _, prompt in batch),
                    group_size=1,
                    max_new_tokens=self.max_new_tokens,
                    temperature=0.0,
                    seed=0,
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
            total += sum(score.rewards_G[0] for score in scores)
        return total / max(1, len(asked))
