"""One batch of completions, from prompt tokens to sampled tokens.

Each prompt is run once, whatever the number of its completions. Prompts of different length are
padded on the left and masked, so a completion is the same as if it were decoded alone. A finished
completion leaves the batch at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from swarmd.errors import GenerationError
from swarmd.generation.kv_cache import RowCache
from swarmd.generation.sampling import choose_tokens

__all__ = ["DecodedRow", "PromptRows", "check_decoding", "decode_batch"]

_CHECK_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.25, torch.float16: 0.05}
"""Nats by which decoding may differ from running the whole text at once."""

_Forward = Callable[[Tensor, Tensor, Tensor, DynamicCache | RowCache], Tensor]


@dataclass(frozen=True)
class PromptRows:
    """A prompt and the completions of it to decode in this batch."""

    token_ids: Sequence[int]
    uniforms: Sequence[Tensor]
    """Per completion, the numbers it is sampled with; as many as it may have tokens, at least one."""


@dataclass(frozen=True)
class DecodedRow:
    """A completion as tokens, the end token included when it has one."""

    token_ids_T: list[int]
    logprobs_T: list[float]
    is_stopped: bool
    """Whether it ended with an end token."""


@torch.inference_mode()
def decode_batch(
    model: Any, prompts: Sequence[PromptRows], temperature: float, end_token_ids: Tensor
) -> list[DecodedRow]:
    """Decode all completions of `prompts`, in their order. `model` is a transformers causal LM."""
    device = end_token_ids.device
    copies_of_prompt = torch.tensor([len(prompt.uniforms) for prompt in prompts], device=device)
    limits = [len(uniform) for prompt in prompts for uniform in prompt.uniforms]
    limits_R = torch.tensor(limits, device=device)
    longest = max(limits)
    uniforms = [uniform for prompt in prompts for uniform in prompt.uniforms]
    uniforms_RT = torch.nn.utils.rnn.pad_sequence(uniforms, batch_first=True).to(device)

    forward = _forward_of(model)
    logits_PV, prefilled, mask_PT = _prefill(forward, [prompt.token_ids for prompt in prompts], device)
    cache = RowCache(prefilled, copies_of_prompt, longest)
    del prefilled
    logits_BV = logits_PV.repeat_interleave(copies_of_prompt, dim=0)
    mask_BT = mask_PT.repeat_interleave(copies_of_prompt, dim=0)
    positions_B = mask_BT.sum(dim=1)
    mask_BT = torch.nn.functional.pad(mask_BT, (0, longest), value=1)
    prompt_length = mask_PT.shape[1]

    sampled_RT = torch.zeros(len(limits), longest, dtype=torch.long, device=device)
    logprobs_RT = torch.zeros(len(limits), longest, device=device)
    lengths_R = limits_R.clone()
    stopped_R = torch.zeros(len(limits), dtype=torch.bool, device=device)
    # B shrinks as rows finish; R is all rows. rows_B says which of R the B living ones are.
    rows_B = torch.arange(len(limits), device=device)
    for step in range(longest):
        tokens_B, step_logprobs_B = choose_tokens(logits_BV, temperature, uniforms_RT[rows_B, step])
        sampled_RT[rows_B, step] = tokens_B
        logprobs_RT[rows_B, step] = step_logprobs_B
        ended_B = torch.isin(tokens_B, end_token_ids)
        finished_B = ended_B | (limits_R[rows_B] == step + 1)
        if finished_B.any():
            stopped_R[rows_B] = ended_B
            lengths_R[rows_B[finished_B]] = step + 1
            living = int((~finished_B).sum())
            if living == 0:
                break
            source_B = _close_gaps(finished_B, living)
            moved_to = (source_B != torch.arange(living, device=device)).nonzero().squeeze(-1)
            cache.keep(moved_to, source_B[moved_to], living)
            rows_B, tokens_B = rows_B[source_B], tokens_B[source_B]
            mask_BT, positions_B = mask_BT[source_B], positions_B[source_B]
        logits_BV = forward(
            tokens_B.unsqueeze(1),
            mask_BT[:, : prompt_length + step + 1],
            positions_B.unsqueeze(1),
            cache,
        )
        positions_B = positions_B + 1
    return _to_rows(sampled_RT, logprobs_RT, lengths_R, stopped_R)


@torch.inference_mode()
def check_decoding(model: Any) -> None:
    """Compare the log-probabilities of `decode_batch` with the model's own plain forward.

    Raises:
        GenerationError: they differ, or the model cannot be run this way: it keeps more than keys
            and values of what it has read.
    """
    first_tokens = [index * 37 % int(model.config.get_text_config().vocab_size) for index in range(7)]
    prompts = [first_tokens, first_tokens[:3]]
    nothing_ends = torch.empty(0, dtype=torch.long, device=model.device)
    uniforms = [torch.zeros(3), torch.zeros(3)]
    kind = model.config.model_type
    try:
        rows = decode_batch(model, [PromptRows(ids, uniforms) for ids in prompts], 0.0, nothing_ends)
    except (AttributeError, IndexError, NotImplementedError, TypeError, ValueError) as error:
        raise GenerationError(f"models of type {kind} cannot be decoded by this engine: {error}") from error
    for ids, row in zip(prompts, rows[::2], strict=True):
        text = torch.tensor([[*ids, *row.token_ids_T]], device=model.device)
        logprobs_TV = torch.log_softmax(model(input_ids=text).logits[0, len(ids) - 1 : -1].float(), dim=-1)
        plain_T = logprobs_TV.gather(-1, text[0, len(ids) :, None]).squeeze(-1).cpu()
        gap = float((plain_T - torch.tensor(row.logprobs_T)).abs().max())
        if not gap <= _CHECK_TOLERANCE[model.dtype]:
            raise GenerationError(
                f"models of type {kind} cannot be decoded by this engine: it is {gap:.3g} nats off"
            )


def _prefill(
    forward: _Forward, prompts: Sequence[Sequence[int]], device: torch.device
) -> tuple[Tensor, DynamicCache, Tensor]:
    longest = max(len(token_ids) for token_ids in prompts)
    ids_PT = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask_PT = torch.zeros(len(prompts), longest, dtype=torch.long)
    for row, token_ids in enumerate(prompts):
        ids_PT[row, longest - len(token_ids) :] = torch.tensor(token_ids)
        mask_PT[row, longest - len(token_ids) :] = 1
    ids_PT, mask_PT = ids_PT.to(device), mask_PT.to(device)
    positions_PT = (mask_PT.cumsum(dim=1) - 1).clamp_(min=0)
    # Without the model's config the cache keeps all positions, also of layers with a sliding
    # window; the mask still hides what is outside of it.
    cache = DynamicCache()
    return forward(ids_PT, mask_PT, positions_PT, cache), cache, mask_PT


def _forward_of(model: Any) -> _Forward:
    """Logits after the last position, B x vocabulary, from token ids, mask, positions and cache."""
    # transformers renamed the argument within its fifth version.
    names = inspect.signature(model.forward).parameters
    cache_argument = "cache" if "cache" in names else "past_key_values"

    def forward(ids_BT: Tensor, mask_BT: Tensor, positions_BT: Tensor, cache: Any) -> Tensor:
        output = model(
            input_ids=ids_BT,
            attention_mask=mask_BT,
            position_ids=positions_BT,
            use_cache=True,
            logits_to_keep=1,
            **{cache_argument: cache},
        )
        logits_BV: Tensor = output.logits[:, -1]
        return logits_BV

    return forward


def _close_gaps(finished_B: Tensor, living: int) -> Tensor:
    """Which row each of the first `living` rows is to hold: itself, or one from behind if it finished."""
    source_B = torch.arange(living, device=finished_B.device)
    from_behind = (~finished_B[living:]).nonzero().squeeze(-1) + living
    source_B[finished_B[:living]] = from_behind
    return source_B


def _to_rows(
    sampled_RT: Tensor, logprobs_RT: Tensor, lengths_R: Tensor, stopped_R: Tensor
) -> list[DecodedRow]:
    return [
        DecodedRow(token_ids[:length], logprobs[:length], is_stopped)
        for token_ids, logprobs, length, is_stopped in zip(
            sampled_RT.tolist(), logprobs_RT.tolist(), lengths_R.tolist(), stopped_R.tolist(), strict=True
        )
    ]
