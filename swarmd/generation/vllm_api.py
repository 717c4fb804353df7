"""All that depends on vLLM's version, in one place: starting it, sampling, and new weights.

`VllmServer` is vLLM's asynchronous engine: its core and its worker are processes of their own.
`register` runs in each of them through the entry point `vllm.general_plugins`. It adds swarmd's
weight channel to vLLM's weight-transfer registry, and ends the process when the generator ends.

An update is one call of the worker, between two steps: it compares the newest weights of the channel with
what the model needs, where a refusal has changed nothing, and the model takes all of them. So no token
is ever sampled from half an update; a worker that is left with one ends.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from vllm import SamplingParams
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferInitRequest,
    WeightTransferUpdateInfo,
    WeightTransferUpdateRequest,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs import tokens_input
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from swarmd.errors import GenerationError, SwarmdError
from swarmd.generation.generator import OpenWeights, WeightSource
from swarmd.generation.model import fitting_weights
from swarmd.generation.vllm_choice import PARENT_VARIABLE
from swarmd.generation.vllm_failure import first_line, keep_first_failure, read_first_failure
from swarmd.generation.vllm_options import Prompt, Sampled, ServerOptions
from swarmd.generation.vllm_traces import name_shared_things
from swarmd.types import WeightHandle
from swarmd.workers.process import die_with_parent

__all__ = [
    "EngineDeadError",
    "Prompt",
    "Sampled",
    "ServerOptions",
    "VllmServer",
    "WorkerExtension",
    "register",
]

BACKEND = "swarmd"


class VllmServer:
    """vLLM with one model. Everything is called from the event loop it was started in."""

    def __init__(self, engine: AsyncLLM) -> None:
        self._engine = engine
        self._requests = 0
        self._is_busy = False

    @classmethod
    async def start(cls, options: ServerOptions, folder: Path) -> VllmServer:
        """Load the model; its processes meet in `folder`. Blocks the loop for the time it takes.

        Raises:
            GenerationError: vLLM does not start; its own words are in the log.
        """
        arguments = AsyncEngineArgs(
            model=options.model_path,
            dtype=options.dtype,
            max_model_len=options.context_tokens,
            kv_cache_memory_bytes=options.kv_cache_bytes,
            gpu_memory_utilization=options.memory_share,
            enforce_eager=not options.is_compiled,
            enable_prefix_caching=True,
            # A group shares its prompt's cache in whole blocks: small ones share more.
            block_size=_BLOCK_TOKENS,
            logprobs_mode="processed_logprobs",
            skip_tokenizer_init=True,
            trust_remote_code=False,
            generation_config="vllm",
            load_format="safetensors",
            use_tqdm_on_load=False,
            seed=0,
            disable_log_stats=True,
            weight_transfer_config=WeightTransferConfig(backend=BACKEND),
            worker_extension_cls=f"{WorkerExtension.__module__}.{WorkerExtension.__name__}",
        )
        try:
            server = cls(AsyncLLM.from_engine_args(arguments))
        except (RuntimeError, ValueError, OSError) as error:
            reason = read_first_failure(folder) or first_line(error)
            raise GenerationError(f"vLLM cannot load the model: {reason}") from error
        expected = {
            "shapes": {name: list(shape) for name, shape in options.shapes.items()},
            "tied": dict(options.tied),
        }
        await server._engine.init_weight_transfer_engine(WeightTransferInitRequest(init_info=expected))
        await server._engine.update_weight_version("0")
        return server

    async def sample(
        self,
        prompts: Sequence[Prompt],
        group_size: int,
        temperature: float,
        seed: int,
        end_token_ids: Sequence[int],
    ) -> list[tuple[Sampled, ...]]:
        """A group of completions for each prompt. One call at a time.

        Raises:
            EngineDeadError: a process of vLLM has ended.
        """
        core = self._engine.engine_core
        # All of them are there before the first step, and the worker's random numbers start anew: so
        # the same call gives the same completions. vLLM's seeds of single requests are not used: on a
        # CPU they end the worker (0.32) when a prompt is computed in two parts.
        await core.pause_scheduler_async(mode="keep", clear_cache=False)
        await self._engine.collective_rpc("seed_sampling", args=(seed,))
        self._is_busy = True
        queues: list[Any] = []
        # The most likely completion is the same each time, and vLLM gives it once only.
        count = group_size if temperature else 1
        try:
            try:
                queues += [
                    await self._add_prompt(prompt, count, temperature, end_token_ids) for prompt in prompts
                ]
            finally:
                await core.resume_scheduler_async()
            finals = [queue.get_nowait() or await queue.get() for queue in queues]
        except asyncio.CancelledError:
            await self._engine.abort([queue.request_id for queue in queues], internal=True)
            raise
        finally:
            self._is_busy = False
            for queue in queues:
                queue.close()
        return [tuple(map(_sampled, final.outputs)) * (group_size // count) for final in finals]

    async def text_logprobs(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        """Log-probability (nats) at temperature 1 of each token of a text but the first.

        Of a text that is shorter than a block, the prefix cache keeps nothing.
        """
        parameters = SamplingParams(
            max_tokens=1,
            temperature=0.0,
            prompt_logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        queue = await self._add(token_ids, parameters)
        try:
            final = queue.get_nowait() or await queue.get()
        finally:
            queue.close()
        found = final.prompt_logprobs
        # The first position is empty.
        starts = [
            start for start, end in zip(found.start_indices, found.end_indices, strict=True) if start < end
        ]
        return tuple(found.logprobs[start] for start in starts)

    async def load_weights(self, handle: WeightHandle) -> tuple[int, int]:
        """Load the newest weights of the channel; completions in flight go on with them.

        Returns their version and checksum.

        Raises:
            GenerationError: they do not fit or cannot be read; the old ones stay.
        """
        engine = self._engine
        is_busy = self._is_busy
        if is_busy:
            # Also drops the cache of what is in flight: it is computed again with the new weights.
            await engine.pause_generation(mode="keep", clear_cache=True)
        await engine.start_weight_update()
        await engine.update_weights(
            WeightTransferUpdateRequest(update_info={"kind": handle.kind, "name": handle.name})
        )
        await engine.finish_weight_update()
        version, checksum, refusal = (await engine.collective_rpc("loaded_weights"))[0]
        if not refusal:
            await engine.update_weight_version(str(version))
        if is_busy:
            await engine.resume_generation()
        else:
            await engine.reset_prefix_cache()
        if refusal:
            raise GenerationError(refusal)
        return int(version), int(checksum)

    async def _add_prompt(
        self, prompt: Prompt, group_size: int, temperature: float, end_token_ids: Sequence[int]
    ) -> Any:
        parameters = SamplingParams(
            n=group_size,
            max_tokens=prompt.max_new_tokens,
            temperature=temperature,
            logprobs=0,
            flat_logprobs=True,
            stop_token_ids=list(end_token_ids),
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        return await self._add(prompt.token_ids_T, parameters)

    async def _add(self, token_ids: Sequence[int], parameters: SamplingParams) -> Any:
        self._requests += 1
        # Of its own salt: a group shares its prompt's cache, and no version ever meets another's.
        tokens = tokens_input(list(token_ids), cache_salt=str(self._requests))
        return await self._engine.add_request(f"swarmd-{self._requests}", tokens, parameters)

    async def answers(self) -> None:
        """Return when the engine's core has answered, which it does between two steps."""
        await self._engine.get_weight_version()

    async def forget_meeting_point(self) -> None:
        """Remove the file through which the workers found each other; they have."""
        await self._engine.collective_rpc("forget_meeting_point")

    async def wipe_cache(self) -> None:
        """Clear the memory of the cache. Nothing may be in flight.

        Numbers that are not finite would stay in it, and meet completions that only pass them over.
        """
        await self._engine.collective_rpc("wipe_cache")

    def close(self) -> None:
        """End vLLM's processes."""
        self._engine.shutdown(timeout=0)
        del self._engine  # While its modules are there; at the end of the process its own end would fail.


class WorkerExtension:
    """Methods that vLLM adds to its worker."""

    weight_transfer_engine: Any
    model_runner: Any
    distributed_init_method: str

    def forget_meeting_point(self) -> None:
        """Remove the file through which the workers found each other."""
        if self.distributed_init_method.startswith("file://"):
            Path(self.distributed_init_method.removeprefix("file://")).unlink(missing_ok=True)

    def wipe_cache(self) -> None:
        """Set the whole cache to zero."""
        for tensor in self.model_runner.kv_caches:
            tensor.zero_()

    def seed_sampling(self, seed: int) -> None:
        """Start the random numbers anew."""
        torch.manual_seed(seed)

    def loaded_weights(self) -> tuple[int, int, str]:
        """Version and checksum of what was loaded last, and why the last attempt was refused, else empty."""
        engine = self.weight_transfer_engine
        return *engine.published, engine.refusal


@dataclass
class _InitInfo(WeightTransferInitInfo):  # type: ignore[misc] # vLLM is untyped for us.
    shapes: dict[str, list[int]]
    tied: dict[str, str]


@dataclass
class _UpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc] # As above.
    kind: str
    name: str


def register(open_weights: OpenWeights) -> None:
    """Make the weight channel known to vLLM in this process, and bind a process of ours to its parent.

    Does nothing of the latter in a vLLM that somebody else has started.
    """
    parent_pid = os.environ.get(PARENT_VARIABLE)
    if parent_pid is not None and int(parent_pid) != os.getpid():
        die_with_parent(int(parent_pid))
        folder = Path(os.environ["VLLM_RPC_BASE_PATH"])
        name_shared_things(folder)
        keep_first_failure(folder)
        os.environ[PARENT_VARIABLE] = str(os.getpid())  # For those that this process starts.

    class ChannelEngine(_ChannelEngine):
        open_weights_ = staticmethod(open_weights)

    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, ChannelEngine)


class _ChannelEngine(WeightTransferEngine[_InitInfo, _UpdateInfo]):  # type: ignore[misc]
    """Reads whole versions from a swarmd weight channel."""

    init_info_cls = _InitInfo
    update_info_cls = _UpdateInfo
    open_weights_: OpenWeights

    def init_transfer_engine(self, init_info: _InitInfo) -> None:
        self._expected = {name: tuple(shape) for name, shape in init_info.shapes.items()}
        self._tied = init_info.tied
        self._weights: WeightSource | None = None
        self._handle: WeightHandle | None = None
        self.published = (0, 0)
        self.refusal = ""

    def start_weight_update(self) -> None:
        """Nothing is touched before the new weights are known to be right."""

    def receive_weights(self, update_info: _UpdateInfo) -> None:
        self._handle = WeightHandle(kind=update_info.kind, name=update_info.name)

    def finish_weight_update(self) -> None:
        handle, self._handle = self._handle, None
        if handle is None:
            return
        try:
            if self._weights is None or self._weights.handle != handle:
                self.shutdown()
                self._weights = self.open_weights_(handle)
            self._weights.lend(self._take)
        except SwarmdError as error:
            # Not raised: vLLM would take it for a fault of the worker.
            self.refusal = str(error)
            return
        self.published, self.refusal = self._weights.last_read or (0, 0), ""

    @torch.no_grad()
    def _take(self, tensors: Mapping[str, torch.Tensor]) -> None:
        fitting = fitting_weights(tensors, self._expected, self._tied)
        initialize_layerwise_reload(self.model)
        self.model.load_weights(iter(fitting.items()))
        finalize_layerwise_reload(self.model, self.model_config)
        if not self._tied or self.device.type != "cpu":
            return
        # On a CPU the head is packed when it is loaded, and a tied head is never loaded again.
        for module in self.model.modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)

    def shutdown(self) -> None:
        if (weights := getattr(self, "_weights", None)) is not None:
            weights.close()
            self._weights = None


_BLOCK_TOKENS = 32


def _sampled(output: Any) -> Sampled:
    versions: list[int] = []
    for span in output.weight_versions:
        versions += [int(span.version)] * (span.end - span.start)
    return Sampled(
        token_ids_T=tuple(output.token_ids),
        logprobs_T=tuple(output.logprobs.logprobs[start] for start in output.logprobs.start_indices),
        versions_T=tuple(versions),
        is_stopped=output.finish_reason == "stop",
    )
