"""The worker processes of a node: which there are, with what each is initialised, and what each said
when it was ready. The supervisors in `workers` keep them running.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from swarmd.config import Config
from swarmd.generation import vllm_traces
from swarmd.generation.generator import Generator
from swarmd.generation.messages import INITIALISE as INITIALISE_GENERATOR
from swarmd.generation.messages import GeneratorReady, GeneratorSettings
from swarmd.loops.state import LoopState
from swarmd.models.placement import FEWEST_TOKENS_AT_ONCE, Placement
from swarmd.models.resolve import ModelFolder
from swarmd.paths import Home
from swarmd.rewards.messages import INITIALISE as INITIALISE_VERIFIER
from swarmd.rewards.messages import VerifierReady, VerifierSettings
from swarmd.rewards.verifier import VerifierPool
from swarmd.tasks.manifest import Manifest
from swarmd.training.client import TrainerClient
from swarmd.training.messages import INITIALISE as INITIALISE_TRAINER
from swarmd.training.messages import TrainerReady, TrainerSettings, TrainingOptions
from swarmd.weights.channel_file import ChannelFile
from swarmd.weights.segment import Segment, channel_name
from swarmd.workers.connection import KILLED
from swarmd.workers.memory_kills import memory_kills
from swarmd.workers.supervisor import Worker, WorkerEvent, WorkerLimits

log = logging.getLogger("swarmd.processes")

QUIET_LIBRARIES = {
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "PYTHONUNBUFFERED": "1",
}
"""Environment of the workers. They load from disk only: what was to be fetched was fetched before."""


class Processes:
    """Trainer, generator and verifiers of one node."""

    def __init__(
        self,
        config: Config,
        home: Home,
        model: ModelFolder,
        placement: Placement,
        manifest: Manifest,
        state: LoopState,
        on_event: Callable[[WorkerEvent], None],
    ) -> None:
        self.trainer_ready: TrainerReady | None = None
        self.generator_ready: GeneratorReady | None = None
        self.verifier_ready: VerifierReady | None = None
        self._config = config
        self._home = home
        self._model = model
        self._placement = placement
        self._manifest = manifest
        self._state = state
        self._on_event = on_event
        self._tokens_at_once = placement.tokens_at_once
        self._memory_kills = memory_kills()
        self._channel_name = channel_name()
        self._trainer_worker = self._worker("trainer", self._start_trainer)
        self._generator_worker = self._worker("generator", self._start_generator)
        verifiers = [
            self._worker("verifier", self._start_verifier, f"verifier-{number}")
            for number in range(1, config.rewards.verifiers + 1)
        ]
        self.workers: tuple[Worker, ...] = (self._trainer_worker, self._generator_worker, *verifiers)
        self.trainer = TrainerClient(self._trainer_worker.call, config.training.timeout_seconds)
        self.generator = Generator(self._generator_worker.call, config.generation.timeout_seconds)
        self.verifier = VerifierPool(
            [verifier.call for verifier in verifiers], config.rewards.timeout_seconds
        )

    @property
    def max_new_tokens(self) -> int:
        """Token limit of a completion: the config's own, else the manifest's."""
        return self._config.rollout.max_new_tokens or self._manifest.max_new_tokens

    def names(self) -> dict[int, str]:
        """The workers' names by process id, of those that have a process now."""
        return {worker.pid: worker.name for worker in self.workers if worker.pid is not None}

    async def wait_ready(self) -> TrainerReady:
        """Return when every worker has been ready once. Raises WorkerError when one stopped for good."""
        await asyncio.gather(*(worker.wait_ready() for worker in self.workers))
        assert self.trainer_ready is not None
        return self.trainer_ready

    def restart(self, name: str, reason: str) -> None:
        """End the worker of this name for a reason; its supervisor starts it again."""
        for worker in self.workers:
            if worker.name == name:
                worker.kill(reason)

    def end_in_haste(self) -> None:
        """Kill every worker and remove what they share, without waiting for anything."""
        for worker in self.workers:
            worker.kill()
        Segment.discard(self._channel_name)
        ChannelFile.discard(str(self._home.weights / "file"))
        vllm_traces.remove_leftovers()

    def _worker(self, module: str, on_start: Callable[[Worker], Awaitable[None]], name: str = "") -> Worker:
        limits = self._config.workers
        name = name or module
        return Worker(
            name,
            f"swarmd.entrypoints.{module}",
            WorkerLimits(
                start_timeout_seconds=limits.start_timeout_seconds,
                restart_min_seconds=limits.restart_min_seconds,
                restart_max_seconds=limits.restart_max_seconds,
                max_fast_failures=limits.max_fast_failures,
                failure_window_seconds=limits.failure_window_seconds,
                stop_timeout_seconds=limits.stop_timeout_seconds,
                heartbeat_timeout_seconds=limits.heartbeat_timeout_seconds,
            ),
            on_start,
            environment=QUIET_LIBRARIES,
            # Verifiers work on what strangers send.
            is_trusted=module != "verifier",
            log_path=self._home.logs / f"{name}.log",
            on_event=self._note,
        )

    def _note(self, event: WorkerEvent) -> None:
        """Pass an event on. A trainer that the kernel has ended for want of memory starts again smaller,
        and stays so: growing back, it would be ended again, and lose what it learned since its checkpoint.
        """
        kills = memory_kills()
        was_killed = event.worker == "trainer" and event.kind == "failed" and event.text.startswith(KILLED)
        if was_killed and kills > self._memory_kills:
            self._tokens_at_once = max(FEWEST_TOKENS_AT_ONCE, self._tokens_at_once // 2)
            log.warning(
                "the kernel has ended the trainer for want of memory: it goes on with %d tokens at once",
                self._tokens_at_once,
            )
        self._memory_kills = kills
        self._on_event(event)

    async def _start_trainer(self, worker: Worker) -> None:
        config, place = self._config, self._placement.trainer
        ready = await worker.call(
            INITIALISE_TRAINER,
            TrainerSettings(
                model_path=str(self._model.path),
                device=place.device,
                dtype=place.dtype,
                threads=config.model.threads,
                seed=config.node.seed,
                channel_name=self._channel_name,
                checkpoint_folder=str(self._home.checkpoints),
                checkpoint_keep=config.schedule.checkpoint_keep,
                temperature=config.rollout.temperature,
                max_new_tokens=self.max_new_tokens,
                options=TrainingOptions(**config.training.options(), tokens_at_once=self._tokens_at_once),
                memory_share=place.memory_share,
                publish_dtype=self._placement.generator.dtype,
                channel=config.weights.channel,
                channel_folder=str(self._home.weights),
                is_gpu_shared=self._placement.is_shared,
            ),
            config.workers.start_timeout_seconds,
        )
        log.info("weights go by %s: %s", ready.handle.kind, ready.channel_reason)
        self.trainer_ready = ready
        self._state.canary.note_trainer_start(ready.policy_version, ready.canary_logprobs_T, ready.dtype)
        self._state.policy_version = ready.policy_version
        self._state.weight_handle = ready.handle
        # A new trainer has a new channel: the generator must look there, whatever version it had.
        self._state.served_version = None
        self._state.notify()

    async def _start_generator(self, worker: Worker) -> None:
        config, place = self._config, self._placement.generator
        self._state.served_version = None
        self._state.canary.note_generator_start()
        self.generator_ready = await worker.call(
            INITIALISE_GENERATOR,
            GeneratorSettings(
                model_path=str(self._model.path),
                engine=config.generation.engine,
                device=place.device,
                dtype=place.dtype,
                threads=config.model.threads,
                seed=config.node.seed,
                kv_cache_bytes=config.generation.kv_cache_bytes,
                memory_share=place.memory_share,
                stall_seconds=config.generation.stall_seconds,
            ),
            config.workers.start_timeout_seconds,
        )
        self._state.notify()

    async def _start_verifier(self, worker: Worker) -> None:
        config = self._config
        self.verifier_ready = await worker.call(
            INITIALISE_VERIFIER,
            VerifierSettings(
                tasks=self._manifest.tasks,
                strict=config.rewards.strict,
                timeout_seconds=config.rewards.timeout_seconds,
                memory_bytes=config.rewards.memory_bytes,
            ),
            config.workers.start_timeout_seconds,
        )
