"""Which completions are decoded together.

Questions of similar length share a batch, so that little is padded, and a batch is as large as the
memory it may take. A group that does not fit at once is split; its prompt is then run once per part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["MemoryCost", "Part", "plan_batches"]


@dataclass(frozen=True)
class MemoryCost:
    """What a row (one completion being decoded) occupies."""

    bytes_per_token: int
    """Keys and values of all layers for one position."""
    bytes_per_row: int
    """Logits and what sampling makes of them."""

    def of_row(self, tokens: int) -> int:
        """Bytes of a row of `tokens` positions, padding and room for new tokens included."""
        return self.bytes_per_row + tokens * self.bytes_per_token


@dataclass(frozen=True)
class Part:
    """Completions `first` up to `first + count` of one question's group."""

    question: int
    first: int
    count: int


def plan_batches(
    prompt_tokens: Sequence[int], group_size: int, new_tokens: int, cost: MemoryCost, budget_bytes: int
) -> list[list[Part]]:
    """Split `len(prompt_tokens)` groups of `group_size` completions into batches within the budget.

    Longest prompts come first. A single completion makes a batch even when it is over the budget.
    """
    batches: list[list[Part]] = []
    rows_left = 0
    for question in sorted(range(len(prompt_tokens)), key=lambda index: -prompt_tokens[index]):
        if group_size <= rows_left:
            batches[-1].append(Part(question, 0, group_size))
            rows_left -= group_size
            continue
        # The first prompt of a batch is its longest: every row is padded to it.
        rows = max(1, budget_bytes // cost.of_row(prompt_tokens[question] + new_tokens))
        batches += [
            [Part(question, first, min(rows, group_size - first))] for first in range(0, group_size, rows)
        ]
        rows_left = rows - batches[-1][0].count
    return batches
