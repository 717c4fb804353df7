"""Sums over the tokens of a training step, from which its metrics are made."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

__all__ = ["Mean", "Tally"]


@dataclass
class Mean:
    """A mean that is put together from parts."""

    total: float = 0.0
    count: int = 0

    def see(self, values_N: Tensor) -> None:
        """Take in all of `values_N`."""
        self.total += float(values_N.to(torch.float64).sum())
        self.count += values_N.numel()

    def add(self, other: Mean) -> None:
        """Take in what `other` has seen."""
        self.total += other.total
        self.count += other.count

    @property
    def value(self) -> float | None:
        """The mean; None when nothing was seen."""
        return self.total / self.count if self.count else None


@dataclass
class Tally:
    """What was seen in one or several optimizer steps, as means over tokens."""

    loss: float | None = None
    grad_norm: float | None = None
    ratio: Mean = field(default_factory=Mean)
    """New to old probability of own tokens."""
    clipped: Mean = field(default_factory=Mean)
    """Part of the tokens that a clip or a cap holds back."""
    dropped: Mean = field(default_factory=Mean)
    """Part of peers' tokens that are not learned from."""
    kl: Mean = field(default_factory=Mean)
    """KL to the reference, nats."""
    gap: Mean = field(default_factory=Mean)
    """Absolute difference between generator and trainer at the same version, nats."""
    sampler_kl: Mean = field(default_factory=Mean)
    """KL from what sampled own tokens to the policy at the start of the step, nats."""
    weight: Mean = field(default_factory=Mean)
    """Importance weight of own tokens: probability at the start of the step to probability sampled with."""
    weight_squared: Mean = field(default_factory=Mean)
    unlikely: set[tuple[str, str]] = field(default_factory=set)
    """Author and id of peers' groups with rewarded completions that the policy would hardly say."""

    def see_own(self, difference_N: Tensor) -> None:
        """Log-probability of own tokens now minus when they were sampled, nats."""
        self.ratio.see(torch.exp(difference_N))

    def see_sampler(self, difference_N: Tensor) -> None:
        """The same, with the log-probability at the start of the step."""
        difference_N = difference_N.to(torch.float64)
        weight_N = torch.exp(difference_N)
        self.sampler_kl.see(torch.expm1(difference_N) - difference_N)
        self.weight.see(weight_N)
        self.weight_squared.see(weight_N.square())

    def see_fresh(self, difference_N: Tensor) -> None:
        """The same, for tokens that should have been sampled with the very same weights."""
        self.gap.see(difference_N.abs())

    def see_clipped(self, clipped_N: Tensor) -> None:
        """Which tokens a clip or a cap holds back."""
        self.clipped.see(clipped_N)

    def see_dropped(self, dropped_N: Tensor) -> None:
        """Which of peers' tokens are not learned from."""
        self.dropped.see(dropped_N)

    def see_kl(self, kl_N: Tensor) -> None:
        """KL estimate of tokens, nats."""
        self.kl.see(kl_N)

    def add(self, other: Tally) -> None:
        """Add what another tally has seen, loss and gradient norm apart."""
        for entry in fields(self):
            mine, theirs = getattr(self, entry.name), getattr(other, entry.name)
            if isinstance(mine, Mean):
                mine.add(theirs)
        self.unlikely |= other.unlikely

    @property
    def effective_share(self) -> float | None:
        """Effective sample size over the number of own tokens: (sum w)^2 / (n sum w^2), from 0 to 1.

        Kong (1992). 1 when all weights are equal; None when no own token was seen.
        """
        mean, mean_square = self.weight.value, self.weight_squared.value
        if mean is None or mean_square is None:
            return None
        return mean * mean / mean_square if mean_square and math.isfinite(mean_square) else 0.0
