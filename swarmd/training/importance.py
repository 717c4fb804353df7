"""How a completion that another policy sampled still teaches this one rightly.

Three policies meet in the loss of a token: the one that is trained, with gradient; the *proximal*
one, which is the trained one at the start of the step; and the *behaviour* one, which sampled the
token, some versions earlier or in another engine. The kinds of correction differ in which ratio
they use, and in how they keep it from growing.

Shapes: G completions, T tokens; `mask_GT` is True on tokens. Only `logprobs_GT` carries a gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from swarmd.training.loss import clipped_tokens, policy_loss

__all__ = ["KINDS", "Ratios", "TokenLosses", "surrogate", "truncated"]

KINDS = ("clipped", "none", "token_truncated", "sequence_geometric", "decoupled")


@dataclass(frozen=True)
class Ratios:
    """Log-probabilities (nats) of the same tokens under three policies, each of shape GT."""

    logprobs_GT: Tensor
    """Under the policy that is trained, with gradient."""
    proximal_GT: Tensor
    """Under the policy at the start of the step."""
    behaviour_GT: Tensor
    """Under the policy that sampled the tokens."""


@dataclass(frozen=True)
class TokenLosses:
    """The surrogate loss of each token, and which tokens a bound holds back; both of shape GT."""

    loss_GT: Tensor
    held_GT: Tensor
    """True where the clip leaves no gradient, or where a weight was cut to the cap."""


def surrogate(
    kind: str, ratios: Ratios, advantages_G: Tensor, mask_GT: Tensor, clip: tuple[float, float], cap: float
) -> TokenLosses:
    """Loss of each token under the correction `kind`; `clip` is (clip_low, clip_high).

    With p the trained policy, q the proximal and b the behaviour one:

    clipped:             PPO's surrogate with the ratio p / b (arXiv 1707.06347, equation 7).
    none:                the same with p / q: what b was is ignored.
    token_truncated:     -sg(min(p / b, cap)) * A * log p, sg for no gradient: truncated importance
                         sampling (Ionides 2008; IMPALA, Espeholt et al. 2018, arXiv 1802.01561,
                         section 4.1), on tokens as in LlamaRL (Wu et al. 2025, arXiv 2505.24034).
                         Late tokens keep a gradient, of bounded weight.
    sequence_geometric:  PPO's surrogate with one ratio a completion, the geometric mean of its p / b
                         (GSPO, Zheng et al. 2025, arXiv 2507.18071, section 4.1), which has no bound where
                         the advantage is negative: it is cut to `cap` there. Each token has the
                         gradient of GSPO-token (section 4.3), which under the aggregation `sequence` is
                         GSPO's.
    decoupled:           sg(min(q / b, cap)) times PPO's surrogate with p / q (Hilton et al. 2021,
                         arXiv 2110.00641, section 3; AReaL, Fu et al. 2025, arXiv 2505.24298,
                         section 5.2): the correction and the size of the update are kept apart.

    Raises ValueError for an unknown kind.
    """
    if kind == "clipped":
        return _clipped(ratios.logprobs_GT, ratios.behaviour_GT, advantages_G, clip)
    if kind == "none":
        return _clipped(ratios.logprobs_GT, ratios.proximal_GT, advantages_G, clip)
    if kind == "token_truncated":
        return truncated(ratios.logprobs_GT, ratios.behaviour_GT, advantages_G, cap)
    if kind == "sequence_geometric":
        return _sequence_geometric(ratios, advantages_G, mask_GT, clip, cap)
    if kind == "decoupled":
        weight_GT, is_cut_GT = _cut(ratios.proximal_GT - ratios.behaviour_GT, cap)
        inner = _clipped(ratios.logprobs_GT, ratios.proximal_GT, advantages_G, clip)
        return TokenLosses(weight_GT * inner.loss_GT, inner.held_GT | is_cut_GT)
    raise ValueError(f"importance must be one of {', '.join(KINDS)}, got {kind!r}")


def truncated(logprobs_GT: Tensor, behaviour_GT: Tensor, advantages_G: Tensor, cap: float) -> TokenLosses:
    """-sg(min(p / b, cap)) * A * log p of each token; see `surrogate`."""
    weight_GT, is_cut_GT = _cut(logprobs_GT.detach() - behaviour_GT, cap)
    return TokenLosses(-weight_GT * advantages_G.unsqueeze(-1) * logprobs_GT, is_cut_GT)


def _clipped(
    logprobs_GT: Tensor, old_GT: Tensor, advantages_G: Tensor, clip: tuple[float, float]
) -> TokenLosses:
    return TokenLosses(
        policy_loss(logprobs_GT, old_GT, advantages_G, *clip),
        clipped_tokens(logprobs_GT, old_GT, advantages_G, *clip),
    )


def _sequence_geometric(
    ratios: Ratios, advantages_G: Tensor, mask_GT: Tensor, clip: tuple[float, float], cap: float
) -> TokenLosses:
    now_GT = ratios.logprobs_GT.detach()
    difference_GT = torch.where(mask_GT, now_GT - ratios.behaviour_GT, 0.0)
    lengths_G1 = mask_GT.sum(dim=-1, keepdim=True).clamp(min=1)
    # The value is the sequence's, the gradient the token's own.
    mean_G1 = difference_GT.sum(dim=-1, keepdim=True) / lengths_G1
    bound_G1, is_cut_G1 = _cut(mean_G1, cap)
    is_cut_G1 &= advantages_G.unsqueeze(-1) < 0
    weight_G1 = torch.where(is_cut_G1, bound_G1, mean_G1.exp())
    # exp(0), with the gradient of logprobs: multiplies the ratio without changing it.
    own_GT = torch.exp(ratios.logprobs_GT - now_GT)
    ratio_GT = weight_G1 * own_GT
    advantages_G1 = advantages_G.unsqueeze(-1)
    clipped_GT = ratio_GT.clamp(1.0 - clip[0], 1.0 + clip[1])
    loss_GT = -torch.minimum(ratio_GT * advantages_G1, clipped_GT * advantages_G1)
    held_GT = clipped_tokens(weight_G1.log().expand_as(now_GT), torch.zeros_like(now_GT), advantages_G, *clip)
    return TokenLosses(loss_GT, held_GT | is_cut_G1)


def _cut(log_ratio: Tensor, cap: float) -> tuple[Tensor, Tensor]:
    """exp(log_ratio), at most `cap`, and where it was above."""
    ratio = torch.exp(log_ratio)
    return ratio.clamp(max=cap), ratio > cap
