"""What a training step minimises: the loss of a slice, with corrections, filters and penalties.

Own completions are corrected as `importance` says. Peers' completions came as text, and what sampled
them is unknown: they count as this policy's own at the start of the step, less what `external` takes
out; with `f_tis`, those that came with log-probabilities are corrected by them instead.
"""

from __future__ import annotations

import torch
from torch import Tensor

from swarmd.errors import TrainingError
from swarmd.training.batch import EncodedGroup
from swarmd.training.external import distant_completions, improbable_tokens, unlikely_completions
from swarmd.training.importance import Ratios, surrogate, truncated
from swarmd.training.loss import BatchTotals, kl_penalty, token_weights
from swarmd.training.messages import TrainingOptions
from swarmd.training.policy import Policy
from swarmd.training.slices import Slice
from swarmd.training.tally import Tally

__all__ = ["Objective"]

_NEEDS_PROXIMAL = ("none", "decoupled")


class Objective:
    """The loss of slices of a batch. With a KL weight, `reference` is what the penalty pulls towards."""

    def __init__(self, options: TrainingOptions, reference: Policy | None) -> None:
        if options.kl_weight > 0 and reference is None:
            raise TrainingError("a KL weight above 0 needs a reference policy")
        self._options = options
        self._reference = reference if options.kl_weight > 0 else None

    @property
    def has_penalty(self) -> bool:
        """Whether groups without signal have a gradient too."""
        return self._reference is not None

    def needs_proximal(self, group: EncodedGroup) -> bool:
        """Whether a second update on `group` needs the log-probabilities from before the first."""
        if not group.is_local or self._options.importance in _NEEDS_PROXIMAL:
            return True
        return any(completion.behaviour_logprobs_T is None for completion in group.completions_G)

    def loss(
        self, logprobs_BT: Tensor, rows: Slice, totals: BatchTotals, policy_version: int | None, seen: Tally
    ) -> Tensor:
        """What `rows` add to the loss of the batch; `logprobs_BT` are the trained policy's.

        `policy_version` is that policy's, or None once it was updated in this step: what it tells of
        the sampler then is only taken from log-probabilities written down before.
        """
        options, mask_BT = self._options, rows.mask_BT
        now_BT = logprobs_BT.detach()
        proximal_BT = torch.where(rows.has_proximal_B.unsqueeze(1), rows.proximal_BT, now_BT)
        has_own_B = rows.is_local_B & rows.has_behaviour_B
        ratios = Ratios(
            logprobs_BT, proximal_BT, torch.where(has_own_B.unsqueeze(1), rows.behaviour_BT, proximal_BT)
        )
        clip = (options.clip_low, options.clip_high)
        tokens = surrogate(
            options.importance, ratios, rows.advantages_B, mask_BT, clip, options.importance_cap
        )
        loss_BT, held_BT = tokens.loss_GT, tokens.held_GT
        has_claim_B1 = (~rows.is_local_B & rows.has_behaviour_B).unsqueeze(1)
        if bool(has_claim_B1.any()):
            foreign = truncated(logprobs_BT, rows.behaviour_BT, rows.advantages_B, options.external_cap)
            loss_BT = torch.where(has_claim_B1, foreign.loss_GT, loss_BT)
            held_BT = torch.where(has_claim_B1, foreign.held_GT, held_BT)
        dropped_BT = self._dropped(proximal_BT, rows) | self._screened(proximal_BT, rows, seen).unsqueeze(1)
        loss_BT = torch.where(dropped_BT, 0.0, loss_BT)
        if self._reference is not None:
            with torch.no_grad():
                reference_BT = self._reference.logprobs(rows)
            kl_BT = kl_penalty(logprobs_BT, reference_BT)
            loss_BT = loss_BT + options.kl_weight * kl_BT
            seen.see_kl(kl_BT.detach()[mask_BT])
        seen.see_clipped(held_BT[mask_BT])
        seen.see_dropped(dropped_BT[mask_BT & ~rows.is_local_B.unsqueeze(1)])
        seen.see_own((now_BT - ratios.behaviour_GT)[mask_BT & rows.is_local_B.unsqueeze(1)])
        self._see_sampler(proximal_BT - rows.behaviour_BT, rows, policy_version, seen)
        weights_BT = token_weights(mask_BT, options.loss_aggregation, totals)
        # Padding is taken out before the sum: a weight of 0 does not silence a NaN.
        return (loss_BT * weights_BT)[mask_BT].sum()

    def _dropped(self, proximal_BT: Tensor, rows: Slice) -> Tensor:
        """Tokens of peers that are not learned from, bool of shape BT."""
        options = self._options
        if options.external == "reencode":
            return torch.zeros_like(rows.mask_BT)
        is_claimed_B = ~rows.is_local_B & rows.has_behaviour_B
        is_unknown_B1 = (~rows.is_local_B & ~rows.has_behaviour_B).unsqueeze(1)
        improbable_BT = improbable_tokens(proximal_BT, rows.advantages_B, options.mask_probability)
        distant_B = distant_completions(
            proximal_BT, rows.behaviour_BT, rows.advantages_B, rows.mask_BT, options.external_max_kl
        )
        return (is_unknown_B1 & improbable_BT) | (is_claimed_B & distant_B).unsqueeze(1)

    def _screened(self, proximal_BT: Tensor, rows: Slice, seen: Tally) -> Tensor:
        """Completions of peers that are not learned from because they are unlikely, bool of shape B."""
        options = self._options
        if options.unlikely == "off":
            return torch.zeros_like(rows.is_local_B)
        unlikely_B = ~rows.is_local_B & unlikely_completions(
            proximal_BT, rows.advantages_B, rows.mask_BT, options.unlikely_below
        )
        seen.unlikely.update(
            source for source, found in zip(rows.source_B, unlikely_B.tolist(), strict=True) if found
        )
        return unlikely_B if options.unlikely == "drop" else torch.zeros_like(unlikely_B)

    def _see_sampler(
        self, difference_BT: Tensor, rows: Slice, policy_version: int | None, seen: Tally
    ) -> None:
        """Note the difference, nats, between the policy at the start of the step and what sampled."""
        is_known_B = rows.is_local_B & rows.has_behaviour_B
        if policy_version is None:
            is_known_B = is_known_B & rows.has_proximal_B
        seen.see_sampler(difference_BT[rows.mask_BT & is_known_B.unsqueeze(1)])
        if policy_version is not None:
            is_fresh_B = is_known_B & (rows.policy_version_B == policy_version)
            seen.see_fresh(difference_BT[rows.mask_BT & is_fresh_B.unsqueeze(1)])
