"""The weights loop: the last arrow of the ring, which hands each new policy version to the generator,
and makes sure by the canary that what it serves then is what the trainer has.

A generator that is off is given the weights again, and started anew when that does not help. Nothing
is sampled meanwhile. One that stays off ends the node.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from swarmd.errors import GenerationError, WorkerError
from swarmd.generation.generator import Generator
from swarmd.loops.canary import CanaryCheck
from swarmd.loops.rollout import NOT_FINITE
from swarmd.loops.state import LoopState

__all__ = ["WeightsLoop"]

WEIGHTS = "weights"
CANARY = "canary"

_NOT_FINITE_LINE = "the generator's log-probabilities of what it sampled are not finite"

log = logging.getLogger("swarmd.canary")


@dataclass(frozen=True)
class WeightsLoop:
    """Gives the generator the newest weights. Versions may be passed over; none is waited for."""

    generator: Generator
    restart: Callable[[str, str], None]
    """Ends a worker process, named first, for a reason; its supervisor starts the next."""
    max_failures: int
    """After this many failed comparisons, or calls with numbers that are none, in a row it is given up."""

    async def run(self, state: LoopState) -> None:
        """Load for ever: whenever the trainer is ahead of the generator.

        Raises GenerationError when the generator stays off.
        """
        while True:
            await state.until(WEIGHTS, lambda: self._is_behind(state), lambda: "a new policy version")
            canary = state.canary
            if canary.is_suspect:
                canary.is_suspect = False
                self._repair(state, NOT_FINITE, _NOT_FINITE_LINE, "generator", canary.not_finite)
            assert state.weight_handle is not None
            try:
                version = await self.generator.load_weights(
                    state.weight_handle,
                    state.policy_version,
                    again=bool(canary.failures or canary.not_finite),
                )
                check = await self._compare(state, version)
            except WorkerError as error:
                await state.note_failure(WEIGHTS, error)
                continue
            state.problems.pop(WEIGHTS, None)
            if check is None or check.is_good:
                state.served_version = version
                self._note_good(state, check)
            else:
                state.served_version = None
                culprit = "generator" if check.is_trainer_finite else "trainer"
                self._repair(state, CANARY, str(check), culprit, canary.failures)
            state.notify()

    def _is_behind(self, state: LoopState) -> bool:
        is_served = state.served_version == state.policy_version and not state.canary.is_suspect
        return state.weight_handle is not None and not is_served

    async def _compare(self, state: LoopState, version: int) -> CanaryCheck | None:
        """Generator against trainer, where that is due and both can be had under the same version."""
        canary = state.canary
        if not canary.is_due(version):
            return None
        trainer_starts = canary.trainer_starts
        found = await self.generator.canary()

        def is_known() -> bool:
            is_answered = canary.reading(found.version) is not None or state.policy_version >= found.version
            return is_answered or canary.trainer_starts != trainer_starts

        # Weights are there before the trainer has answered the step that they come from.
        await state.until(WEIGHTS, is_known, lambda: "the trainer's answer")
        expected_T = canary.reading(found.version)
        if expected_T is None or canary.trainer_starts != trainer_starts:
            return None  # It was not asked at this version; it is at the next.
        return canary.compare(found.version, expected_T, found.logprobs_T, found.dtype)

    def _note_good(self, state: LoopState, check: CanaryCheck | None) -> None:
        if check is not None and state.problems.pop(CANARY, None) is not None:
            log.info("repaired: %s", check)

    def _repair(self, state: LoopState, name: str, problem: str, culprit: str, times: int) -> None:
        """Have the weights loaded again, or the process at fault started again, or give up; `times` is
        how often in a row there was this problem.
        """
        if times >= self.max_failures:
            hint = "; generation.canary_tolerance sets what is tolerated" if "tolerance" in problem else ""
            raise GenerationError(f"{problem}, {times} times in a row, after new weights and restarts{hint}")
        is_restart = culprit == "trainer" or times > 1
        remedy = f"the {culprit} is restarted" if is_restart else "the generator loads its weights again"
        state.problems[name] = f"{problem}: {remedy}"
        log.warning("%s", state.problems[name])
        if culprit == "trainer":
            state.weight_handle = None  # There is nothing to load before the next trainer has started.
        if is_restart:
            self.restart(culprit, f"was ended: {problem}")
