"""The train loop: sampler.draw, trainer.step, and a new policy version. One turn is a round: the
node's own, of no meaning to any other node. The last arrow of the ring, to the generator, is in `weights`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from swarmd.errors import WorkerError
from swarmd.loops.state import LoopState
from swarmd.replay.sampler import Batch, Sampler
from swarmd.replay.screens import Screen
from swarmd.training.client import TrainerClient
from swarmd.training.messages import StepMetrics, StepReply

TRAIN = "train"
STEP_GRACE_SECONDS = 8.0
"""A node that is asked to stop waits so long for a step that is under way."""


@dataclass(frozen=True)
class Round:
    """What one round brought, for history, log and screen."""

    number: int
    batch: Batch
    metrics: StepMetrics
    step_seconds: float
    wait_seconds: float
    """Time before the batch was complete."""


@dataclass(frozen=True)
class TrainLoop:
    """Draws batches and takes training steps."""

    sampler: Sampler
    trainer: TrainerClient
    rounds: int
    """Stop after this round; 0: never."""
    on_round: Callable[[Round], Awaitable[None]]
    """Called after each round, before the next begins."""
    note_screened: Callable[[str, Screen], None] = lambda author, screen: None
    """Told whose groups a screen held up, one by one."""

    async def run(self, state: LoopState) -> None:
        """Train until `rounds` are done. A trainer that fails costs the batch it had."""
        while not self.rounds or state.round < self.rounds:
            began = time.monotonic()
            # Sampling may have waited to hear what the batch lacks.
            self._missing(state)
            state.notify()
            await state.until(TRAIN, lambda: self._missing(state) == 0, lambda: self._waits_for(state))
            await self.turn(state, time.monotonic() - began)

    async def turn(self, state: LoopState, wait_seconds: float = 0.0) -> None:
        """One round, where a batch can be drawn."""
        batch = self.sampler.draw(state.policy_version, state.in_flight)
        if batch is None:
            return
        # Groups left the queue: the rollout loop may go on while the trainer works.
        state.is_stepping = True
        state.notify()
        stepped = time.monotonic()
        step = asyncio.ensure_future(
            self.trainer.step(batch.groups, canary=state.canary.is_due(state.policy_version + 1))
        )
        try:
            reply = await asyncio.shield(step)
        except WorkerError as error:
            await state.note_failure(TRAIN, error)
            return
        except asyncio.CancelledError:
            # The weights that are saved at the end have this step in them: it belongs to a round.
            await asyncio.wait({step}, timeout=STEP_GRACE_SECONDS)
            if not step.done():
                step.cancel()
            elif step.exception() is None:
                await self._end_round(state, batch, step.result(), time.monotonic() - stepped, wait_seconds)
            raise
        finally:
            state.is_stepping = False
        await self._end_round(state, batch, reply, time.monotonic() - stepped, wait_seconds)

    async def _end_round(
        self, state: LoopState, batch: Batch, reply: StepReply, step_seconds: float, wait_seconds: float
    ) -> None:
        """Book a step that is done."""
        state.problems.pop(TRAIN, None)
        if reply.problem:
            state.problems[TRAIN] = reply.problem
        state.policy_version = reply.policy_version
        state.canary.note_reading(reply.policy_version, reply.canary_logprobs_T)
        state.external_used += batch.external
        state.filled += batch.filled
        state.trained_groups += len(batch.groups)
        state.close_round()
        self.sampler.note_round(batch, reply.metrics.dropped_share, state.evaluations, state.eval_reward)
        state.external_wanted = self.sampler.pace.external_groups
        state.notify()
        self._note_screened(batch, reply.metrics)
        await self.on_round(Round(state.round, batch, reply.metrics, step_seconds, wait_seconds))

    def _note_screened(self, batch: Batch, metrics: StepMetrics) -> None:
        for group in batch.above_share:
            self.note_screened(group.author, Screen.BATCH_SHARE)
        for author, count in metrics.unlikely_groups.items():
            for _ in range(count):
                self.note_screened(author, Screen.UNLIKELY)

    def _missing(self, state: LoopState) -> int:
        state.missing = self.sampler.missing(state.policy_version, state.in_flight)
        return state.missing

    def _waits_for(self, state: LoopState) -> str:
        # Just looked at, by the condition that does not hold.
        missing = state.missing
        return f"{missing} more rollout group{'s' if missing != 1 else ''}"
