"""The trainer process: `python -m swarmd.entrypoints.trainer --fd N`.

Joins training with the weight channel. It loads the model or its newest intact checkpoint, publishes
the weights, and then answers steps and saves. New weights are published before a step is answered.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers.utils.logging import disable_progress_bar

from swarmd.errors import CheckpointError, TrainingError, WeightChannelError
from swarmd.models.canary import canary_tokens
from swarmd.models.device import Compute, choose_compute, choose_threads, limit_memory
from swarmd.models.tokenization import fingerprint, load_tokenizer
from swarmd.training.checkpoint import Checkpoint, CheckpointCounters, CheckpointStore
from swarmd.training.messages import (
    INITIALISE,
    SAVE,
    STEP,
    SaveReply,
    SaveRequest,
    StepReply,
    StepRequest,
    TrainerReady,
    TrainerSettings,
    TrainingOptions,
)
from swarmd.training.model_digest import model_digest
from swarmd.training.policy import Policy
from swarmd.training.trainer import Trainer, TrainerState
from swarmd.weights import channel
from swarmd.weights.segment import remove_leftovers
from swarmd.workers.process import handle, report_progress, serve, worker_argument_fd

__all__ = ["TrainerProcess", "main"]


class TrainerProcess:
    """Answers the methods of `training.messages`, with the trainer, its checkpoints and its channel."""

    def __init__(self) -> None:
        self._running: _Running | None = None

    def initialise(self, settings: TrainerSettings) -> TrainerReady:
        """Load everything and publish the first weights.

        Raises ConfigError, TrainingError, CheckpointError or WeightChannelError, each one line.
        """
        self.close()
        remove_leftovers()  # Of nodes that were killed: each would occupy memory for ever.
        torch.set_num_threads(choose_threads(settings.threads))
        compute = choose_compute(settings.device, settings.dtype)
        limit_memory(compute.device, settings.memory_share)
        # The generator reads the weights in its own format, which takes half the memory where it is shorter.
        publish_dtype: torch.dtype = getattr(torch, settings.publish_dtype or compute.dtype_name)
        digest = model_digest(settings.model_path)
        store = CheckpointStore(Path(settings.checkpoint_folder), settings.checkpoint_keep)
        report_progress("loading tokenizer and model")
        tokenizer = load_tokenizer(settings.model_path)
        trainer = Trainer(
            _load_policy(settings, compute, settings.options),
            tokenizer,
            settings.options,
            max_new_tokens=settings.max_new_tokens,
            seed=settings.seed,
            reference=_load_policy(settings, compute) if settings.options.kl_weight > 0 else None,
        )
        report_progress("looking for a checkpoint")
        found = store.load_newest(digest)
        notes: tuple[str, ...] = ()
        if found is not None:
            checkpoint, path, damaged = found
            _resume(trainer, checkpoint, path)
            notes += damaged
        report_progress("publishing weights")
        weights = _as_published(trainer, publish_dtype)
        opened = channel.create(
            settings.channel,
            settings.channel_name,
            Path(settings.channel_folder),
            weights,
            same_gpu=settings.is_gpu_shared,
        )
        notes += (opened.problem,) if opened.problem else ()
        publisher = _Publisher(opened.writer, publish_dtype, trainer.policy_version)
        running = _Running(trainer, store, publisher, digest, canary_tokens(tokenizer))
        self._running = running
        opened.writer.publish(trainer.policy_version, weights)
        return TrainerReady(
            handle=opened.writer.handle,
            policy_version=trainer.policy_version,
            steps=trainer.steps,
            device=str(compute.device),
            dtype=compute.dtype_name,
            tokenizer_fingerprint=fingerprint(tokenizer),
            parameters=sum(parameter.numel() for parameter in trainer.policy.parameters.values()),
            resumed_from=None if found is None else str(found[1]),
            node_state=None if found is None else found[0].node_state,
            canary_logprobs_T=running.canary_logprobs(),
            notes=notes,
            channel_reason=opened.reason,
        )

    def step(self, request: StepRequest) -> StepReply:
        """Learn from the groups; publish if the policy has moved."""
        running = self._need_running()
        metrics = running.trainer.step(request.groups)
        problem = running.publisher.follow(running.trainer)
        return StepReply(
            running.publisher.version, metrics, problem, running.canary_logprobs() if request.canary else None
        )

    def save(self, request: SaveRequest) -> SaveReply:
        """Write a checkpoint. Raises CheckpointError; training can go on after it."""
        running = self._need_running()
        started = time.monotonic()
        state = running.trainer.state()
        saved = running.store.save(
            Checkpoint(
                weights=state.weights,
                optimizer=state.optimizer,
                counters=CheckpointCounters(
                    model_digest=running.model_digest,
                    round=request.round,
                    policy_version=state.policy_version,
                    steps=state.steps,
                    skipped_updates=state.skipped_updates,
                    eval_reward=request.eval_reward,
                ),
                node_state=request.node_state,
            )
        )
        return SaveReply(str(saved.path), saved.bytes, time.monotonic() - started)

    def close(self) -> None:
        """Remove the weight channel."""
        if self._running is not None:
            self._running.publisher.writer.close()
            self._running = None

    def _need_running(self) -> _Running:
        if self._running is None:
            raise TrainingError("the trainer has not been initialised")
        return self._running


@dataclass
class _Publisher:
    """Gives the weights to the generator whenever the policy has moved."""

    writer: channel.Writer
    dtype: torch.dtype
    version: int
    """Published last."""

    def follow(self, trainer: Trainer) -> str:
        """Publish unless that is done. Returns why it failed; the version before it is served then."""
        if trainer.policy_version == self.version:
            return ""
        try:
            self.writer.publish(trainer.policy_version, _as_published(trainer, self.dtype))
        except WeightChannelError as error:
            return f"policy version {trainer.policy_version} is not published: {error}"
        self.version = trainer.policy_version
        return ""


@dataclass(frozen=True)
class _Running:
    """What there is once the trainer is initialised."""

    trainer: Trainer
    store: CheckpointStore
    publisher: _Publisher
    model_digest: str
    canary_token_ids: tuple[int, ...]

    def canary_logprobs(self) -> tuple[float, ...] | None:
        """What the published policy finds of the canary's text: nats, of each token but the first.

        None while the newest weights could not be published: those before it are gone.
        """
        if self.publisher.version != self.trainer.policy_version:
            return None
        return tuple(self.trainer.policy.text_logprobs(self.canary_token_ids).tolist())


def main() -> None:
    """Serve until the daemon says stop or is gone."""
    disable_progress_bar()  # Of transformers; the log file is no terminal.
    process = TrainerProcess()
    fd = worker_argument_fd()
    try:
        serve(
            fd,
            [handle(INITIALISE, process.initialise), handle(STEP, process.step), handle(SAVE, process.save)],
        )
    finally:
        process.close()


def _load_policy(
    settings: TrainerSettings, compute: Compute, options: TrainingOptions | None = None
) -> Policy:
    # float16 gradients underflow: the trainer computes in float32 and only publishes float16.
    compute_dtype = torch.float32 if compute.dtype == torch.float16 else compute.dtype
    return Policy.load(
        settings.model_path, compute.device, compute_dtype, settings.temperature, options, settings.seed
    )


def _resume(trainer: Trainer, checkpoint: Checkpoint, path: Path) -> None:
    counters = checkpoint.counters
    state = TrainerState(
        weights=dict(checkpoint.weights),
        optimizer=dict(checkpoint.optimizer),
        policy_version=counters.policy_version,
        steps=counters.steps,
        skipped_updates=counters.skipped_updates,
    )
    try:
        trainer.restore(state)
    except TrainingError as error:
        raise CheckpointError(
            f"{path} cannot be resumed: {error}; use the model and the options it was made with, another "
            "--home, or move the folder away to begin anew"
        ) from error


def _as_published(trainer: Trainer, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The weights as the generator computes with them."""
    return {name: tensor.to(dtype) for name, tensor in trainer.policy.weights().items()}


if __name__ == "__main__":
    main()
