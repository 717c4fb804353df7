"""Sums over the tokens of a training step, from which its metrics are made."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Tally"]


@dataclass
class _Mean:
    total: float = 0.0
    count: int = 0

    def see(self, values_N: Tensor) -> None:
        self.total += float(values_N.to(torch.float64).sum())
        self.count += values_N.numel()

    def add(self, other: _Mean) -> None:
        self.total += other.total
        self.count += other.count

    @property
    def value(self) -> float | None:
        return self.total / self.count if self.count else None


class Tally:
    """What was seen in one or several optimizer steps. Values are None when nothing was seen."""

    def __init__(self) -> None:
        self.loss: float | None = None
        self.grad_norm: float | None = None
        self._ratio = _Mean()
        self._clipped = _Mean()
        self._kl = _Mean()
        self._gap = _Mean()

    def see_own(self, difference_N: Tensor) -> None:
        """Log-probability of own tokens now minus when they were sampled, nats."""
        self._ratio.see(torch.exp(difference_N))

    def see_fresh(self, difference_N: Tensor) -> None:
        """The same, for tokens that should have been sampled with the very same weights."""
        self._gap.see(difference_N.abs())

    def see_clipped(self, clipped_N: Tensor) -> None:
        """Which tokens the clip holds."""
        self._clipped.see(clipped_N)

    def see_kl(self, kl_N: Tensor) -> None:
        """KL estimate of tokens, nats."""
        self._kl.see(kl_N)

    def add(self, other: Tally) -> None:
        """Add what another tally has seen."""
        self._ratio.add(other._ratio)
        self._clipped.add(other._clipped)
        self._kl.add(other._kl)
        self._gap.add(other._gap)

    @property
    def mean_ratio(self) -> float | None:
        """Mean ratio of new to old probability of own tokens."""
        return self._ratio.value

    @property
    def clipped_share(self) -> float | None:
        """Part of the tokens that the clip holds."""
        return self._clipped.value

    @property
    def kl(self) -> float | None:
        """Mean KL estimate, nats a token."""
        return self._kl.value

    @property
    def sampler_gap(self) -> float | None:
        """Mean absolute difference between generator and trainer, nats a token."""
        return self._gap.value
