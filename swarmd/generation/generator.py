"""Sampling completions: what an engine must be able to do, and how the daemon asks for it.

An `Engine` lives in the generator process and holds the model. `Generator` is its client in the
daemon; it knows neither torch nor the engine, only messages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

from swarmd.errors import WorkerError
from swarmd.generation.messages import (
    CANARY,
    LOAD_WEIGHTS,
    SAMPLE,
    CanaryReply,
    CanaryRequest,
    GeneratorReady,
    LoadWeightsReply,
    LoadWeightsRequest,
    SampleReply,
    SampleRequest,
)
from swarmd.types import SampledGroup, WeightHandle
from swarmd.workers.framing import Method

if TYPE_CHECKING:
    import torch

__all__ = ["Call", "Engine", "Generator", "OpenWeights", "WeightSource", "is_finite"]

Request = TypeVar("Request")
Reply = TypeVar("Reply")


class Engine(Protocol):
    """A model that decodes. Used by one thread."""

    @property
    def ready(self) -> GeneratorReady:
        """What was loaded, where, and how."""

    def sample(self, request: SampleRequest) -> SampleReply:
        """Sample a group for each prompt, all with the weights loaded last. Log-probabilities are told as
        they are, also where they are not finite.
        """

    def load_weights(self, request: LoadWeightsRequest) -> LoadWeightsReply:
        """Replace all weights by the newest of the channel, or none of them when they do not fit."""

    def canary(self) -> CanaryReply:
        """Log-probabilities of the canary's text under the weights loaded last."""

    def close(self) -> None:
        """Let go of processes and channels. Nothing else may be called afterwards."""


class WeightSource(Protocol):
    """The reading end of a weight channel."""

    @property
    def handle(self) -> WeightHandle:
        """The channel it reads."""

    @property
    def last_read(self) -> tuple[int, int] | None:
        """Version and checksum of what was lent last; equal ones have the same content."""

    def latest(self) -> tuple[int, int] | None:
        """Version and checksum of the newest complete weights, unread; None before the first."""

    def lend(self, take: Callable[[Mapping[str, torch.Tensor]], None]) -> int:
        """Give the newest complete weights to `take`, which copies them, and return their version. `take` may
        be called twice: what it took last is whole.

        Raises WeightChannelError when nothing was taken, and RuntimeError when half an update was.
        """

    def close(self) -> None:
        """Let go of the channel."""


class OpenWeights(Protocol):
    """Attaches to a weight channel."""

    def __call__(self, handle: WeightHandle) -> WeightSource:
        """Raises WeightChannelError when the channel cannot be opened."""


class Call(Protocol):
    """Asks the generator process, as `Worker.call` does."""

    async def __call__(
        self, method: Method[Request, Reply], request: Request, timeout_seconds: float
    ) -> Reply:
        """Raises WorkerError when the process died, refused, or passed the deadline."""


class Generator:
    """The daemon's view of the generator process."""

    def __init__(self, call: Call, timeout_seconds: float) -> None:
        self._call = call
        self._timeout_seconds = timeout_seconds

    async def sample(self, request: SampleRequest) -> SampleReply:
        """One group of completions per prompt, in the order of the prompts.

        Raises:
            WorkerError: the process failed; it is being restarted, and asking again is right.
        """
        reply = await self._call(SAMPLE, request, self._timeout_seconds)
        complete = [len(group.completions_G) == request.group_size for group in reply.groups]
        if len(complete) != len(request.prompts) or not all(complete):
            raise WorkerError(
                f"the generator answered {len(request.prompts)} prompts with {sum(complete)} whole groups"
            )
        return reply

    async def load_weights(self, handle: WeightHandle, version: int, *, again: bool = False) -> int:
        """Have it load `version` or a newer one; returns the version it has then. `again`: also when
        it has that one already.

        Raises:
            WorkerError: the process failed, or the channel could not be read.
        """
        request = LoadWeightsRequest(handle=handle, version=version, again=again)
        reply = await self._call(LOAD_WEIGHTS, request, self._timeout_seconds)
        return reply.version

    async def canary(self) -> CanaryReply:
        """What it finds of the canary's text, and under which version.

        Raises:
            WorkerError: the process failed.
        """
        return await self._call(CANARY, CanaryRequest(), self._timeout_seconds)


def is_finite(group: SampledGroup) -> bool:
    """Whether every log-probability of the group is a number that can be learned from."""
    return all(math.isfinite(value) for one in group.completions_G for value in one.logprobs_T or ())
