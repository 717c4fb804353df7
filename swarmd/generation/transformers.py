"""The engine that decodes with Hugging Face transformers. Runs wherever torch runs.

It promises that the log-probabilities it reports are those of its own weights at the sampling
temperature, that a refused weight update leaves the old weights whole, and that running out of GPU
memory makes batches smaller instead of ending the process.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch

from swarmd.errors import GenerationError
from swarmd.generation.batching import Part, plan_batches
from swarmd.generation.decoding import DecodedRow, PromptRows, check_decoding, decode_batch
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
from swarmd.generation.model import end_token_ids, load_model, memory_cost, replace_weights
from swarmd.generation.prompts import encode_prompts
from swarmd.generation.sampling import uniform_stream
from swarmd.models.canary import canary_tokens
from swarmd.models.device import choose_compute, choose_threads, limit_memory
from swarmd.models.tokenization import (
    Tokenizer,
    decode_completion,
    fingerprint,
    load_tokenizer,
)
from swarmd.types import Completion, FinishReason, SampledGroup

__all__ = ["TransformersEngine"]

_CPU_BATCH_BYTES = 1 << 30
_GPU_BATCH_SHARE = 0.5
"""Of what the generator may still take once the model is loaded; prompts are computed in the rest."""


class TransformersEngine:
    """A model, its tokenizer, and the policy version of its weights."""

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        seed: int,
        batch_bytes: int,
        open_weights: OpenWeights,
        note: str = "",
    ) -> None:
        self._model = model.eval().requires_grad_(False)
        self._tokenizer = tokenizer
        self._seed = seed
        self._batch_bytes = batch_bytes
        self._open_weights = open_weights
        self._weights: WeightSource | None = None
        self._note = note
        self.policy_version = 0
        config = model.config.get_text_config()
        self._context_tokens = int(config.max_position_embeddings)
        self._cost = memory_cost(config, model.dtype)
        self._end_token_ids = torch.tensor(end_token_ids(model, tokenizer), device=model.device)

    @classmethod
    def load(
        cls, settings: GeneratorSettings, open_weights: OpenWeights, note: str = ""
    ) -> TransformersEngine:
        """Read the model folder: safetensors only, nothing from the network, no code of the folder.
        `note` says why this engine was chosen, where there is a reason to tell.

        Raises:
            ConfigError: the device does not exist or does not work.
            GenerationError: the folder cannot be loaded, or the model is of a kind that this engine
                decodes wrongly.
        """
        torch.set_num_threads(choose_threads(settings.threads))
        compute = choose_compute(settings.device, settings.dtype)
        limit_memory(compute.device, settings.memory_share)
        tokenizer = load_tokenizer(settings.model_path)
        model = load_model(settings.model_path, compute.dtype).eval().to(compute.device)
        check_decoding(model)
        batch_bytes = _CPU_BATCH_BYTES
        if compute.device.type == "cuda":
            total = torch.cuda.get_device_properties(compute.device).total_memory
            left = total * settings.memory_share - torch.cuda.memory_allocated(compute.device)
            batch_bytes = int(left * _GPU_BATCH_SHARE)
        return cls(model, tokenizer, settings.seed, batch_bytes, open_weights, note)

    @property
    def ready(self) -> GeneratorReady:
        """What was loaded, where, and how."""
        return GeneratorReady(
            engine="transformers",
            device=str(self._model.device),
            dtype=str(self._model.dtype).removeprefix("torch."),
            tokenizer_fingerprint=fingerprint(self._tokenizer),
            context_tokens=self._context_tokens,
            note=self._note,
        )

    def sample(self, request: SampleRequest) -> SampleReply:
        """Sample a group for each prompt. A prompt near the context's end gets shorter completions.

        Raises:
            GenerationError: a prompt does not fit the context, the sizes make no sense, or memory does
                not suffice for one completion.
        """
        started = time.monotonic()
        prompts = encode_prompts(request, self._tokenizer, self._context_tokens)
        rows = self._decode_all(prompts, request)
        groups = tuple(
            SampledGroup(
                completions_G=tuple(
                    self._completion(rows[question, place]) for place in range(request.group_size)
                ),
                policy_version=self.policy_version,
            )
            for question in range(len(prompts))
        )
        return SampleReply(
            groups=groups,
            generated_tokens=sum(len(row.token_ids_T) for row in rows.values()),
            seconds=time.monotonic() - started,
        )

    def load_weights(self, request: LoadWeightsRequest) -> LoadWeightsReply:
        """Load the newest weights of the channel, all of them or none.

        Raises:
            WeightChannelError: the channel cannot be read.
            GenerationError: the weights are those of another model.
            RuntimeError: half an update is loaded; this process is of no more use.
        """
        started = time.monotonic()
        if self._weights is None or self._weights.handle != request.handle:
            if self._weights is not None:
                self._weights.close()
                self._weights = None
            self._weights = self._open_weights(request.handle)
        self.policy_version = self._weights.lend(partial(replace_weights, self._model))
        return LoadWeightsReply(version=self.policy_version, seconds=time.monotonic() - started)

    @torch.inference_mode()
    def canary(self) -> CanaryReply:
        """Log-probabilities of the canary's text under the weights loaded last."""
        ids_1S = torch.tensor([canary_tokens(self._tokenizer)], device=self._model.device)
        logprobs_SV = torch.log_softmax(self._model(input_ids=ids_1S).logits[0, :-1].float(), dim=-1)
        logprobs_S = logprobs_SV.gather(-1, ids_1S[0, 1:].unsqueeze(-1)).squeeze(-1)
        return CanaryReply(self.policy_version, tuple(logprobs_S.tolist()), self.ready.dtype)

    def close(self) -> None:
        """Let go of the weight channel."""
        if self._weights is not None:
            self._weights.close()
            self._weights = None

    def _decode_all(
        self, prompts: list[list[int]], request: SampleRequest
    ) -> dict[tuple[int, int], DecodedRow]:
        """Decoded rows by (question, place in the group)."""
        while True:
            try:
                rows: dict[tuple[int, int], DecodedRow] = {}
                lengths = [len(token_ids) for token_ids in prompts]
                for batch in plan_batches(
                    lengths, request.group_size, request.max_new_tokens, self._cost, self._batch_bytes
                ):
                    rows |= self._decode(batch, prompts, request)
                return rows
            except torch.OutOfMemoryError as error:
                self._make_batches_smaller(error)

    def _decode(
        self, batch: list[Part], prompts: list[list[int]], request: SampleRequest
    ) -> dict[tuple[int, int], DecodedRow]:
        seeds = (self._seed, request.seed)
        prompt_rows = []
        for part in batch:
            token_ids = prompts[part.question]
            limit = min(request.max_new_tokens, self._context_tokens - len(token_ids))
            places = range(part.first, part.first + part.count)
            uniforms = [uniform_stream(seeds, part.question, place, limit) for place in places]
            prompt_rows.append(PromptRows(token_ids, uniforms))
        keys = [(part.question, part.first + place) for part in batch for place in range(part.count)]
        decoded = decode_batch(self._model, prompt_rows, request.temperature, self._end_token_ids)
        return dict(zip(keys, decoded, strict=True))

    def _make_batches_smaller(self, error: torch.OutOfMemoryError) -> None:
        if self._batch_bytes < self._cost.of_row(1):
            raise GenerationError(
                "not enough GPU memory to decode a single completion; "
                "use a smaller model or fewer rollout.max_new_tokens"
            ) from error
        self._batch_bytes //= 2
        torch.cuda.empty_cache()

    def _completion(self, row: DecodedRow) -> Completion:
        text_ids = row.token_ids_T[:-1] if row.is_stopped else row.token_ids_T
        return Completion(
            text=decode_completion(self._tokenizer, text_ids),
            finish_reason=FinishReason.STOP if row.is_stopped else FinishReason.LENGTH,
            token_ids_T=tuple(row.token_ids_T),
            logprobs_T=tuple(row.logprobs_T),
        )
