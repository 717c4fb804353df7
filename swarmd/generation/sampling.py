"""Choosing the next token, with its log-probability.

Each completion draws from a random stream of its own, named by seed, question and place in the
group. What it gets does therefore not depend on which other completions are decoded beside it or
when they finish, and the same seed gives the same completions.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

__all__ = ["choose_tokens", "uniform_stream"]


def uniform_stream(seeds: tuple[int, ...], question: int, place: int, length: int) -> Tensor:
    """`length` uniform numbers in [0, 1) for one completion, float64 on the CPU."""
    key = np.random.SeedSequence([*(seed % 2**64 for seed in seeds), question, place])
    return torch.from_numpy(np.random.Generator(np.random.Philox(key)).random(length))


def choose_tokens(logits_BV: Tensor, temperature: float, uniform_B: Tensor) -> tuple[Tensor, Tensor]:
    """The next token of each row and its log-probability (nats, float32) at `temperature`.

    Inverse transform sampling: the token at which the cumulated probability passes the row's
    uniform number. Temperature 0 takes the most likely token and reports log-probabilities at 1.
    Logits that are not finite give a log-probability that is not finite; the caller must look.
    """
    if temperature == 0:
        logprobs_BV = torch.log_softmax(logits_BV.float(), dim=-1)
        tokens_B = logprobs_BV.argmax(dim=-1)
    else:
        logprobs_BV = torch.log_softmax(logits_BV.float() / temperature, dim=-1)
        # float64, so that the sum over a large vocabulary keeps the share of unlikely tokens, and
        # a number below 1 times the total stays below the total: no token of probability 0.
        cumulated_BV = logprobs_BV.double().exp().cumsum(dim=-1)
        thresholds_B1 = uniform_B.unsqueeze(-1) * cumulated_BV[:, -1:]
        tokens_B = torch.searchsorted(cumulated_BV, thresholds_B1, right=True).squeeze(-1)
        tokens_B = tokens_B.clamp_(max=logits_BV.shape[-1] - 1)  # Only reached when nothing is finite.
    return tokens_B, logprobs_BV.gather(-1, tokens_B.unsqueeze(-1)).squeeze(-1)
