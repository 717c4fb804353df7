"""Statistics over seeds. A value is one of a whole swarm with its seed: its nodes learn from each other, so
they are no repetitions. Few seeds are the rule, so tests are exact where they can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

__all__ = ["Estimate", "SignFlip", "estimate", "holm", "iqm", "sign_flip"]

TRIMMED = 0.25
"""Cut from each end: the interquartile mean (Agarwal et al. 2021, arXiv 2108.13264)."""
RESAMPLES = 10_000
LEVEL = 0.95
MOST_EXACT_SEEDS = 16
"""With so many pairs all 2^n flips are gone through; with more, 2^16 random ones."""


@dataclass(frozen=True)
class Estimate:
    """An interquartile mean with its interval."""

    value: float
    low: float
    high: float
    seeds: int


@dataclass(frozen=True)
class SignFlip:
    """A paired test of whether differences are about zero."""

    p: float
    """Two-sided."""
    smallest_p: float
    """What p can be at least with so many pairs, however large the differences are."""


def iqm(values: Sequence[float]) -> float:
    """Mean of the middle half. Of fewer than four values nothing is trimmed."""
    return float(stats.trim_mean(np.asarray(values, dtype=float), TRIMMED))


def estimate(values: Sequence[float]) -> Estimate:
    """The interquartile mean of one value for each seed, with its 95 % interval by percentile bootstrap over
    seeds. One value has no interval: its ends are NaN. The same values give the same interval.

    Raises ValueError without values.
    """
    if not values:
        raise ValueError("an estimate needs a value")
    array = np.sort(np.asarray(values, dtype=float))
    if len(array) == 1:
        return Estimate(float(array[0]), float("nan"), float("nan"), 1)
    generator = np.random.default_rng(0)
    drawn = array[generator.integers(len(array), size=(RESAMPLES, len(array)))]
    means = stats.trim_mean(drawn, TRIMMED, axis=1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(iqm(values), float(low), float(high), len(array))


def sign_flip(differences: Sequence[float]) -> SignFlip:
    """Whether the mean of paired differences is beyond chance: if the two arms were alike, each difference
    could as well have the other sign. Needs no normality (Fisher 1935, section 21).

    Raises ValueError without differences.
    """
    if not differences:
        raise ValueError("a test needs a pair")
    array = np.asarray(differences, dtype=float)
    pairs = len(array)
    if pairs <= MOST_EXACT_SEEDS:
        flips = np.arange(2**pairs)
        signs = 1 - 2 * ((flips[:, None] >> np.arange(pairs)) & 1)
        extra = 0
    else:
        signs = np.random.default_rng(0).choice([-1, 1], size=(2**MOST_EXACT_SEEDS, pairs))
        # What was observed is one of the flips (Phipson and Smyth 2010): p is never 0.
        extra = 1
    means = np.abs(signs @ array) / pairs
    # Sums in another order differ in the last bits.
    beyond = int(np.sum(means >= abs(float(array.mean())) * (1 - 1e-9)))
    return SignFlip((beyond + extra) / (len(signs) + extra), min(1.0, 2.0 / (len(signs) + extra)))


def holm(p_values: Sequence[float]) -> list[float]:
    """The p values, adjusted so that the chance of any false finding among them stays below the level
    (Holm 1979), in their order.
    """
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, p_values[place] * (len(p_values) - rank)))
        adjusted[place] = largest
    return adjusted
