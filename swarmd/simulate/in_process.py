"""Generator and trainer of a simulated node: the same engine and the same trainer as in the worker
processes, called directly. Each call holds the event loop, so nodes take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swarmd.generation.messages import LOAD_WEIGHTS, SAMPLE, GeneratorSettings
from swarmd.generation.transformers import TransformersEngine
from swarmd.models.device import choose_compute
from swarmd.models.tokenization import fingerprint, load_tokenizer
from swarmd.training.messages import STEP, StepReply, StepRequest, TrainingOptions
from swarmd.training.policy import Policy
from swarmd.training.trainer import Trainer
from swarmd.types import WeightHandle
from swarmd.workers.framing import Method

if TYPE_CHECKING:
    import torch

IN_PROCESS = WeightHandle("in_process", "trainer")


class InProcessModel:
    """One node's policy, sampled from and trained in this process on the CPU."""

    def __init__(
        self, folder: Path, options: TrainingOptions, *, temperature: float, max_new_tokens: int, seed: int
    ) -> None:
        compute = choose_compute("cpu", "float32")
        tokenizer = load_tokenizer(folder)
        policy = Policy.load(folder, compute.device, compute.dtype, temperature, options, seed)
        self.tokenizer_fingerprint = fingerprint(tokenizer)
        self._trainer = Trainer(policy, tokenizer, options, max_new_tokens=max_new_tokens, seed=seed)
        settings = GeneratorSettings(str(folder), "transformers", "cpu", "float32", threads=1, seed=seed)
        self._engine = TransformersEngine.load(settings, self._open_weights)
        self.busy_seconds = 0.0
        """Time that the calls took."""

    async def call(self, method: Method[Any, Any], request: Any, timeout_seconds: float) -> Any:
        """Answers the methods of generator and trainer, as `Worker.call` does. No deadline applies."""
        began = time.perf_counter()
        try:
            return self._answer(method, request)
        finally:
            self.busy_seconds += time.perf_counter() - began

    def _answer(self, method: Method[Any, Any], request: Any) -> Any:
        if method is SAMPLE:
            return self._engine.sample(request)
        if method is LOAD_WEIGHTS:
            return self._engine.load_weights(request)
        if method is STEP:
            return self._step(request)
        raise ValueError(f"a simulated node has no method {method.name!r}")

    def _open_weights(self, handle: WeightHandle) -> _TrainerWeights:
        return _TrainerWeights(self._trainer)

    def _step(self, request: StepRequest) -> StepReply:
        metrics = self._trainer.step(request.groups)
        return StepReply(self._trainer.policy_version, metrics)


class _TrainerWeights:
    """The reading end of a weight channel that needs no channel. A version of one trainer in one process
    has one content, so every checksum is 0.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.last_read: tuple[int, int] | None = None
        self._trainer = trainer

    @property
    def handle(self) -> WeightHandle:
        """The one handle of this kind."""
        return IN_PROCESS

    def latest(self) -> tuple[int, int]:
        """The trainer's version, and 0."""
        return self._trainer.policy_version, 0

    def lend(self, take: Callable[[Mapping[str, torch.Tensor]], None]) -> int:
        """Give the trainer's weights to `take`, and return their version."""
        take(self._trainer.state().weights)
        self.last_read = self.latest()
        return self._trainer.policy_version

    def close(self) -> None:
        """Nothing is held."""
