"""The tokenizer of the bundled models: byte-level BPE, trained on questions and answers.

It is a `Qwen2Tokenizer`, because transformers loads that class for every Qwen2 model, whatever the
folder says. It promises that text comes back as it went in (up to Unicode NFC), that digits, letter
runs and operator runs never share a token, and that a cell of a grid and each prompt mark is one
token. Cells and marks are ordinary added tokens, so decoding shows them; only the end token is
special.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, pre_tokenizers
from transformers import Qwen2Tokenizer

__all__ = ["ANSWER_MARK", "END_TOKEN", "QUESTION_MARK", "train_tokenizer"]

QUESTION_MARK = "<question>"
"""Stands before the question, with nothing between them."""
ANSWER_MARK = "<answer>"
"""Stands after the question; the answer follows at once."""
END_TOKEN = "<end>"
"""Ends the answer. Also used for padding."""

_CELLS = tuple(f" {digit}" for digit in range(10))
"""Qwen2's pre-tokenizer parts a space from the digit after it, which would double a grid's length."""


def train_tokenizer(texts: Iterable[str], vocabulary_size: int, context_tokens: int) -> Qwen2Tokenizer:
    """Learn a vocabulary of at most `vocabulary_size` tokens from `texts`. Same texts, same result."""
    added = (*_CELLS, QUESTION_MARK, ANSWER_MARK)
    learned = Qwen2Tokenizer(
        vocab={END_TOKEN: 0}, merges=[], unk_token=END_TOKEN, eos_token=END_TOKEN, pad_token=END_TOKEN
    ).train_new_from_iterator(
        texts,
        vocab_size=vocabulary_size - len(added),
        min_frequency=2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    assert isinstance(learned, Qwen2Tokenizer)
    learned.add_tokens([AddedToken(text, normalized=False) for text in added])
    learned.model_max_length = context_tokens
    return learned
