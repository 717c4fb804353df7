"""Group-relative advantages: how much better a completion is than its siblings."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["STD_FLOOR", "group_advantages"]

STD_FLOOR = 1e-4
"""Added to the standard deviation, so that nearly equal rewards do not become large advantages."""


def group_advantages(rewards_G: Sequence[float], normalisation: str) -> tuple[float, ...]:
    """Advantages of the completions of one group.

    std:   A_i = (r_i - mean(r)) / (std(r) + STD_FLOOR), std over the G rewards (divided by G)
    none:  A_i = r_i - mean(r)

    `std` is GRPO (Shao et al. 2024, arXiv 2402.03300, section 4.1.2); `none` is Dr. GRPO (Liu et
    al. 2025, arXiv 2503.20783, section 3), which leaves the division out because it over-weights
    groups that are nearly all right or nearly all wrong.

    Equal rewards give exact zeros. Raises ValueError for an empty group, a reward that is not
    finite, or an unknown normalisation.
    """
    if not rewards_G:
        raise ValueError("a group needs at least one reward")
    if not all(math.isfinite(reward) for reward in rewards_G):
        raise ValueError(f"rewards must be finite, got {list(rewards_G)}")
    if normalisation not in ("std", "none"):
        raise ValueError(f"advantage normalisation must be std or none, got {normalisation!r}")
    if max(rewards_G) == min(rewards_G):
        return (0.0,) * len(rewards_G)
    mean = math.fsum(rewards_G) / len(rewards_G)
    centred_G = [reward - mean for reward in rewards_G]
    if normalisation == "none":
        return tuple(centred_G)
    std = math.sqrt(math.fsum(value * value for value in centred_G) / len(centred_G))
    return tuple(value / (std + STD_FLOOR) for value in centred_G)
