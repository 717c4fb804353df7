"""The daemon's side of scoring: spreads requests over the verifier processes.

Promises: a group that its verifier cannot survive ends as a reply that says so, not as an exception in a
loop. A verifier that keeps failing for other reasons ends the node through its supervisor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from swarmd.errors import WorkerError
from swarmd.rewards.messages import (
    REGENERATE,
    SCORE,
    RegenerateReply,
    RegenerateRequest,
    ScoreReason,
    ScoreReply,
    ScoreRequest,
)
from swarmd.types import TaskReference
from swarmd.workers.framing import Method

_Request = TypeVar("_Request")
_Reply = TypeVar("_Reply")

_ATTEMPTS = 2


class Call(Protocol):
    """Asks one verifier process. Queues while it is busy or being restarted. Raises WorkerError."""

    async def __call__(
        self, method: Method[_Request, _Reply], request: _Request, timeout_seconds: float
    ) -> _Reply:
        """The reply of the process."""


class VerifierPool:
    """The node's verifiers. Each request goes to the least busy one."""

    def __init__(self, calls: Sequence[Call], timeout_seconds: float) -> None:
        """`timeout_seconds` is what a verifier itself allows for a request."""
        if not calls:
            raise ValueError("a pool needs at least one verifier")
        self._calls = tuple(calls)
        self._pending = [0] * len(self._calls)
        # The verifier keeps its own deadline; this one catches a verifier that hangs itself.
        self._deadline_seconds = 2 * timeout_seconds + 5
        self._failures = 0

    @property
    def failures(self) -> int:
        """Requests given up because verifiers failed on them."""
        return self._failures

    async def score(self, reference: TaskReference, completions_G: Sequence[str]) -> ScoreReply:
        """Rewards of one group."""
        reply = await self._ask(SCORE, ScoreRequest(reference, tuple(completions_G)))
        if reply is None or len(reply.rewards_G) != len(completions_G):
            return _unscored(len(completions_G))
        return reply

    async def regenerate(self, references: Sequence[TaskReference]) -> tuple[str | None, ...]:
        """Questions of tasks, None for each that cannot be regenerated."""
        reply: RegenerateReply | None = await self._ask(REGENERATE, RegenerateRequest(tuple(references)))
        if reply is None or len(reply.questions) != len(references):
            return (None,) * len(references)
        return reply.questions

    async def _ask(self, method: Method[_Request, _Reply], request: _Request) -> _Reply | None:
        for _ in range(_ATTEMPTS):
            chosen = min(range(len(self._calls)), key=self._pending.__getitem__)
            self._pending[chosen] += 1
            try:
                return await self._calls[chosen](method, request, self._deadline_seconds)
            except WorkerError:
                # Its supervisor says why and restarts it.
                continue
            finally:
                self._pending[chosen] -= 1
        self._failures += 1
        return None


def _unscored(group_size: int) -> ScoreReply:
    return ScoreReply(None, (0.0,) * group_size, (ScoreReason.CRASHED,) * group_size)
