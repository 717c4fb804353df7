"""The engine that decodes with vLLM. Fast, and it takes new weights in the middle of its work.

It promises what `Engine` asks for, and more: while it samples it follows the weight channel, so a
long answer does not hold up the trainer's next version. The completions in flight go on under the
new weights, each token with the log-probability under the version that sampled it.

vLLM runs in processes of its own. When one of them ends or stops answering, this process ends too,
and the daemon starts everything again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from swarmd.errors import ConfigError, SwarmdError
from swarmd.generation import vllm_traces
from swarmd.generation.generator import OpenWeights, WeightSource
from swarmd.generation.messages import (
    CanaryReply,
    GeneratorReady,
    GeneratorSettings,
    LoadWeightsReply,
    LoadWeightsRequest,
    SampleReply,
    SampleRequest,
)
from swarmd.generation.prompts import encode_prompts
from swarmd.generation.vllm_choice import environment, find_vllm, why_not, why_not_on
from swarmd.generation.vllm_options import Prompt, Sampled, end_token_ids, plan_server, skeleton
from swarmd.models.canary import canary_tokens
from swarmd.models.device import Compute, choose_compute, choose_threads
from swarmd.models.tokenization import (
    decode_completion,
    fingerprint,
    load_tokenizer,
)
from swarmd.types import Completion, FinishReason, SampledGroup, WeightHandle
from swarmd.workers.process import report_progress

__all__ = ["VllmEngine"]

Result = TypeVar("Result")

_FOLLOW_SECONDS = 0.05
"""Pause between two looks at the weight channel while completions are in flight."""
_PROGRESS_SECONDS = 10.0
"""Between two lines about a start that goes on."""


class VllmEngine:
    """vLLM's processes, the model's tokenizer, and the policy version that is served."""

    def __init__(
        self,
        settings: GeneratorSettings,
        compute: Compute,
        open_weights: OpenWeights,
        note: str,
        folder: Path,
    ) -> None:
        """Start vLLM, whose processes meet in `folder`."""
        self._settings = settings
        self._open_weights = open_weights
        self._weights: WeightSource | None = None
        self._loaded: tuple[int, int] | None = None
        """Version and checksum."""
        self._loop = asyncio.new_event_loop()
        self._tokenizer = load_tokenizer(settings.model_path)
        model = skeleton(settings.model_path)
        self._end_token_ids = end_token_ids(settings.model_path, model.config, self._tokenizer)
        options = plan_server(settings, compute, model)
        self._context_tokens = options.context_tokens
        whole = int(model.config.get_text_config().max_position_embeddings)
        if self._context_tokens < whole:
            note += f"; its cache holds {self._context_tokens} of the model's {whole} tokens of context"
        self.policy_version = 0
        self.ready = GeneratorReady(
            engine="vllm",
            device=str(compute.device),
            dtype=compute.dtype_name,
            tokenizer_fingerprint=fingerprint(self._tokenizer),
            context_tokens=self._context_tokens,
            note=note,
        )
        # Imported only now: vLLM reads the environment when it is imported.
        from swarmd.generation.vllm_api import VllmServer

        self._server = self._loop.run_until_complete(VllmServer.start(options, folder))
        # The first steps compile kernels; better here than within somebody's deadline.
        warm_up = [Prompt(self._end_token_ids[:1], 2)]
        self._loop.run_until_complete(self._server.sample(warm_up, 2, 1.0, 0, self._end_token_ids))
        self._loop.run_until_complete(self._server.forget_meeting_point())

    @classmethod
    def load(cls, settings: GeneratorSettings, open_weights: OpenWeights) -> VllmEngine:
        """Start vLLM with the model folder: safetensors only, nothing from the network.

        Raises:
            ConfigError: vLLM is missing, of another version, or built for another device.
            GenerationError: it cannot load the model.
        """
        installed = find_vllm()
        compute = choose_compute(settings.device, settings.dtype)
        reason = why_not(installed)
        if installed is not None and reason is None:
            reason = why_not_on(installed, compute.device.type)
        if installed is None or reason is not None:
            raise ConfigError(f"generation.engine is vllm, but {reason}; install it, or use transformers")
        os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)  # It would overrule generation.kv_cache_bytes.
        vllm_traces.remove_leftovers()
        folder = vllm_traces.make_folder()
        os.environ.update(environment(choose_threads(settings.threads), str(compute.device), str(folder)))
        try:
            with _shown_progress(f"starting vLLM {installed.version}"):
                return cls(settings, compute, open_weights, f"vLLM {installed.version} samples", folder)
        finally:
            vllm_traces.forget(folder)

    def sample(self, request: SampleRequest) -> SampleReply:
        """Sample a group for each prompt. A prompt near the context's end gets shorter completions.

        Raises:
            GenerationError: a prompt does not fit the context, or the sizes make no sense.
            RuntimeError: vLLM has ended or hangs; this process is of no more use.
        """
        started = time.monotonic()
        prompts = encode_prompts(request, self._tokenizer, self._context_tokens)
        groups = self._run(self._sample(prompts, request))
        return SampleReply(
            groups=groups,
            generated_tokens=sum(
                len(completion.token_ids_T or ()) for group in groups for completion in group.completions_G
            ),
            seconds=time.monotonic() - started,
        )

    def load_weights(self, request: LoadWeightsRequest) -> LoadWeightsReply:
        """Load the newest weights of the channel, all of them or none. Those that are loaded already are
        only loaded `again` when that is asked.

        Raises:
            WeightChannelError: the channel cannot be opened.
            GenerationError: it cannot be read, or the weights are those of another model.
        """
        started = time.monotonic()
        weights = self._attach(request.handle)
        if request.again or self._loaded is None or weights.latest() != self._loaded:
            self._run(self._load(request.handle))
        return LoadWeightsReply(version=self.policy_version, seconds=time.monotonic() - started)

    def canary(self) -> CanaryReply:
        """Log-probabilities of the canary's text under the weights loaded last.

        Raises:
            RuntimeError: vLLM has ended or hangs; this process is of no more use.
        """
        limit = self._settings.stall_seconds
        try:
            found_T = self._run(
                asyncio.wait_for(self._server.text_logprobs(canary_tokens(self._tokenizer)), limit)
            )
        except TimeoutError:
            raise RuntimeError(f"vLLM made no step for {limit:g} s (generation.stall_seconds)") from None
        if not np.isfinite(found_T).all():
            self._loop.run_until_complete(self._server.wipe_cache())
        return CanaryReply(self.policy_version, found_T, self.ready.dtype)

    def close(self) -> None:
        """End vLLM's processes and let go of the channel."""
        self._server.close()
        # Lets the tasks end that the shutdown has cancelled.
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()
        if self._weights is not None:
            self._weights.close()

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        from swarmd.generation.vllm_api import EngineDeadError

        try:
            return self._loop.run_until_complete(self._watched(work))
        except EngineDeadError as error:
            raise RuntimeError("a process of vLLM has ended (killed, or out of memory?)") from error

    async def _watched(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do the work, and give it up when vLLM makes no step any more."""
        working, watching = asyncio.create_task(work), asyncio.create_task(self._watch())
        try:
            await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                watching.result()
            return working.result()
        finally:
            working.cancel()
            watching.cancel()
            await asyncio.gather(working, watching, return_exceptions=True)

    def _attach(self, handle: WeightHandle) -> WeightSource:
        if self._weights is None or self._weights.handle != handle:
            opened = self._open_weights(handle)
            if self._weights is not None:
                self._weights.close()
            self._weights, self._loaded = opened, None
        return self._weights

    async def _load(self, handle: WeightHandle) -> None:
        self._loaded = await self._server.load_weights(handle)
        self.policy_version = self._loaded[0]

    async def _sample(self, prompts: list[list[int]], request: SampleRequest) -> tuple[SampledGroup, ...]:
        sampling = asyncio.create_task(
            self._server.sample(
                [
                    Prompt(token_ids, min(request.max_new_tokens, self._context_tokens - len(token_ids)))
                    for token_ids in prompts
                ],
                request.group_size,
                request.temperature,
                _seed(self._settings.seed, request),
                self._end_token_ids,
            )
        )
        over = asyncio.Event()
        following = asyncio.create_task(self._follow(over))
        sampling.add_done_callback(lambda _: over.set())
        try:
            # Following ends after sampling: an update that has begun is finished.
            await following
            sampled = sampling.result()
        finally:
            sampling.cancel()
            following.cancel()
            await asyncio.gather(sampling, following, return_exceptions=True)
        if not all(np.isfinite(one.logprobs_T).all() for completions in sampled for one in completions):
            await self._server.wipe_cache()
        return tuple(self._group(completions) for completions in sampled)

    def _group(self, sampled: tuple[Sampled, ...]) -> SampledGroup:
        completions = tuple(
            Completion(
                text=decode_completion(
                    self._tokenizer, one.token_ids_T[:-1] if one.is_stopped else one.token_ids_T
                ),
                finish_reason=FinishReason.STOP if one.is_stopped else FinishReason.LENGTH,
                token_ids_T=one.token_ids_T,
                logprobs_T=one.logprobs_T,
                versions_T=one.versions_T if len(set(one.versions_T)) > 1 else None,
            )
            for one in sampled
        )
        return SampledGroup(completions, policy_version=min(min(one.versions_T) for one in sampled))

    async def _follow(self, over: asyncio.Event) -> None:
        """Until it is over, load each new version that appears. One that is refused is left for
        `load_weights` to report.
        """
        refused: tuple[int, int] | None = None
        while not over.is_set():
            latest = None if self._weights is None else self._weights.latest()
            is_newer = latest is not None and self._loaded is not None and latest[0] > self._loaded[0]
            if self._weights is not None and is_newer and latest != refused:
                try:
                    await self._load(self._weights.handle)
                except SwarmdError:
                    refused = latest
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), _FOLLOW_SECONDS)

    async def _watch(self) -> None:
        """Notice when vLLM makes no step any more."""
        while True:
            await asyncio.sleep(1.0)
            try:
                await asyncio.wait_for(self._server.answers(), self._settings.stall_seconds)
            except TimeoutError:
                raise RuntimeError(
                    f"vLLM made no step for {self._settings.stall_seconds:g} s (generation.stall_seconds)"
                ) from None


def _seed(own: int, request: SampleRequest) -> int:
    key = np.random.SeedSequence([own % 2**64, request.seed % 2**64])
    return int(key.generate_state(1, np.uint64)[0] >> 1)


@contextlib.contextmanager
def _shown_progress(text: str) -> Iterator[None]:
    """Tell the daemon now and then that `text` goes on."""
    done = threading.Event()

    def show() -> None:
        started = time.monotonic()
        while not done.wait(_PROGRESS_SECONDS):
            report_progress(f"{text}, {time.monotonic() - started:.0f} s")

    report_progress(text)
    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
