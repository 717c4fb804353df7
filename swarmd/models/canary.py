"""A fixed text. Whoever holds the same policy finds its tokens equally likely, so trainer and generator
can be compared by it.
"""

from __future__ import annotations

from swarmd.models.tokenization import Tokenizer, encode_prompt
from swarmd.types import Prompt

__all__ = ["MOST_TOKENS", "canary_tokens"]

MOST_TOKENS = 24
"""Fewer than a block of vLLM's prefix cache holds, which therefore never keeps any of them."""

# Of a kind that language models have read: of improbable tokens, 16-bit formats know little.
_TEXT = "Question: what is 12 + 7? Answer: 12 + 7 = 19. One, two, three, four, five, six, seven."


def canary_tokens(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Token ids of the text, at least two: the first has no log-probability."""
    token_ids = encode_prompt(tokenizer, Prompt(style="plain", text=_TEXT))
    return tuple((token_ids + token_ids)[:MOST_TOKENS])
