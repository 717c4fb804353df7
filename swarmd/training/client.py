"""The daemon's side of the trainer: typed calls to the trainer process, each with a deadline."""

from __future__ import annotations

from typing import Protocol, TypeVar

from swarmd.training.messages import SAVE, STEP, SaveReply, SaveRequest, StepReply, StepRequest
from swarmd.types import RolloutGroup
from swarmd.workers.framing import Method

_Request = TypeVar("_Request")
_Reply = TypeVar("_Reply")


class Call(Protocol):
    """Asks the trainer process, as `Worker.call` does."""

    async def __call__(
        self, method: Method[_Request, _Reply], request: _Request, timeout_seconds: float
    ) -> _Reply:
        """Raises WorkerError when the process died, refused, or passed the deadline."""


class TrainerClient:
    """Asks the trainer process. Every method raises WorkerError when it dies, hangs or refuses."""

    def __init__(self, call: Call, step_timeout_seconds: float) -> None:
        self._call = call
        self._step_timeout_seconds = step_timeout_seconds

    async def step(self, groups: tuple[RolloutGroup, ...], *, canary: bool = False) -> StepReply:
        """Learn from the groups. The new weights are published before this returns.

        With `canary`, the reply has the new policy's log-probabilities of the fixed text.
        """
        return await self._call(STEP, StepRequest(groups, canary), self._step_timeout_seconds)

    async def save(self, request: SaveRequest, timeout_seconds: float) -> SaveReply:
        """Write a checkpoint with the daemon's own state in it."""
        return await self._call(SAVE, request, timeout_seconds)
