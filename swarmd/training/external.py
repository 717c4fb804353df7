"""Which parts of peers' completions are not learned from.

A completion with a negative advantage pushes its tokens' probability down. Where the own policy would
hardly ever have said them, that teaches nothing and moves everything else, without any bound from
below. One with a positive advantage teaches all it says, the answer and what stands beside it. Each rule
here marks such parts; their loss is 0, and they still count in what a loss is divided by.

Shapes: G completions, T tokens; `mask_GT` is True on tokens. Nothing here carries a gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["distant_completions", "improbable_tokens", "unlikely_completions"]


def improbable_tokens(logprobs_GT: Tensor, advantages_G: Tensor, least_probability: float) -> Tensor:
    """Tokens of negative advantage that the own policy gives less than `least_probability`, bool GT.

    `logprobs_GT`, nats, are the own policy's: nothing is needed from the sender. A one-sided form of
    the masks of IcePop (arXiv 2510.18855), which compare with the sampler's probability instead.
    """
    return (torch.exp(logprobs_GT) < least_probability) & (advantages_G.unsqueeze(-1) < 0)


def distant_completions(
    logprobs_GT: Tensor, behaviour_GT: Tensor, advantages_G: Tensor, mask_GT: Tensor, most_kl: float
) -> Tensor:
    """Completions of negative advantage whose KL(sender || own) is above `most_kl` nats a token, bool G.

    Estimated on the completion itself, which the sender sampled, with d = own - sender log-probability:
    mean over tokens of exp(d) - 1 - d, never negative. The filter of F-TIS (arXiv 2605.22537), which drops
    foreign completions of negative advantage by a KL threshold; the estimator and its unit are our choice.
    """
    difference_GT = torch.where(mask_GT, logprobs_GT - behaviour_GT, 0.0)
    kl_GT = torch.expm1(difference_GT) - difference_GT
    kl_G = kl_GT.sum(dim=-1) / mask_GT.sum(dim=-1).clamp(min=1)
    return (kl_G > most_kl) & (advantages_G < 0)


def unlikely_completions(logprobs_GT: Tensor, advantages_G: Tensor, mask_GT: Tensor, floor: float) -> Tensor:
    """Completions of positive advantage whose mean log-probability is below `floor`, nats a token, bool G.

    What such a completion has beside a right answer would be taught (arXiv 2511.09780). The mean is under
    the own policy, so that a peer cannot choose it; a payload that this policy finds likely passes.
    """
    totals_G = torch.where(mask_GT, logprobs_GT, 0.0).sum(dim=-1)
    return (totals_G / mask_GT.sum(dim=-1).clamp(min=1) < floor) & (advantages_G > 0)
