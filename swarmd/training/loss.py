"""The GRPO loss, as pure functions of tensors.

A batch is computed in slices that never meet in memory: each token's loss is weighted by
`token_weights` with the totals of the whole batch, so that the slices' sums add up to the loss of
the batch, whatever the slices are.

Shapes: G completions, T tokens. Completions are padded on the right; padding has weight 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["BatchTotals", "clipped_tokens", "kl_penalty", "policy_loss", "token_weights"]


@dataclass(frozen=True)
class BatchTotals:
    """What the loss of a batch is divided by. Groups without signal are counted."""

    tokens: int
    """Completion tokens."""
    sequences: int
    """Completions."""
    token_limit: int
    """The most tokens that a completion may have."""


def policy_loss(
    logprobs_GT: Tensor, old_logprobs_GT: Tensor, advantages_G: Tensor, clip_low: float, clip_high: float
) -> Tensor:
    """Clipped surrogate loss of each token, shape GT.

    ratio_t = exp(logprob_t - old_logprob_t)
    loss_t  = -min(ratio_t * A, clip(ratio_t, 1 - clip_low, 1 + clip_high) * A)

    PPO's objective (Schulman et al. 2017, arXiv 1707.06347, equation 7) with the advantage of the
    completion for each of its tokens (GRPO, arXiv 2402.03300, equation 3), and bounds that may
    differ (DAPO, Yu et al. 2025, arXiv 2503.14476, section 3.1). Gradients flow through `logprobs_GT` only.
    """
    ratio_GT = torch.exp(logprobs_GT - old_logprobs_GT.detach())
    advantages_G1 = advantages_G.unsqueeze(-1)
    clipped_GT = ratio_GT.clamp(1.0 - clip_low, 1.0 + clip_high)
    return -torch.minimum(ratio_GT * advantages_G1, clipped_GT * advantages_G1)


def clipped_tokens(
    logprobs_GT: Tensor, old_logprobs_GT: Tensor, advantages_G: Tensor, clip_low: float, clip_high: float
) -> Tensor:
    """Which tokens get no gradient from `policy_loss` because the clip holds them, bool of shape GT."""
    ratio_GT = torch.exp(logprobs_GT.detach() - old_logprobs_GT)
    advantages_G1 = advantages_G.unsqueeze(-1)
    too_likely_GT = (ratio_GT > 1.0 + clip_high) & (advantages_G1 > 0)
    too_unlikely_GT = (ratio_GT < 1.0 - clip_low) & (advantages_G1 < 0)
    return too_likely_GT | too_unlikely_GT


def kl_penalty(logprobs_GT: Tensor, reference_logprobs_GT: Tensor) -> Tensor:
    """Estimate of KL(policy || reference) at each token, shape GT, never negative.

    d_t = reference_logprob_t - logprob_t;  kl_t = exp(d_t) - d_t - 1

    GRPO (arXiv 2402.03300, equation 4), after Schulman's unbiased estimator k3.
    """
    difference_GT = reference_logprobs_GT.detach() - logprobs_GT
    return torch.exp(difference_GT) - difference_GT - 1.0


def token_weights(mask_GT: Tensor, aggregation: str, totals: BatchTotals) -> Tensor:
    """Weight of each token's loss in the loss of the batch, shape GT; `mask_GT` is True on tokens.

    token:     1 / tokens of the batch                          (DAPO, arXiv 2503.14476, equation 8)
    sequence:  1 / (sequences of the batch * own length)        (GRPO, arXiv 2402.03300, equation 3)
    constant:  1 / (sequences of the batch * token limit)       (Dr. GRPO, arXiv 2503.20783, section 3)

    Raises ValueError for an unknown aggregation.
    """
    mask_GT = mask_GT.to(torch.float32)
    if aggregation == "token":
        return mask_GT / max(1, totals.tokens)
    if aggregation == "sequence":
        lengths_G1 = mask_GT.sum(dim=-1, keepdim=True).clamp(min=1.0)
        return mask_GT / (lengths_G1 * totals.sequences)
    if aggregation == "constant":
        return mask_GT / (totals.sequences * totals.token_limit)
    raise ValueError(f"loss aggregation must be token, sequence or constant, got {aggregation!r}")
