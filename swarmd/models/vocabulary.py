"""The tokenizer of the bundled models: byte-level BPE, trained on questions and answers.

It promises that every text encodes and decodes without loss, that digits, letter runs, operator
runs and line breaks never share a token, and that the two prompt marks are one token each. The
marks are ordinary added tokens, so decoding shows them; only the end token is special.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

__all__ = ["ANSWER_MARK", "END_TOKEN", "QUESTION_MARK", "train_tokenizer"]

QUESTION_MARK = "<question>"
"""Stands before the question, with nothing between them."""
ANSWER_MARK = "<answer>"
"""Stands after the question; the answer follows at once."""
END_TOKEN = "<end>"  # noqa: S105 - a token of the vocabulary, not a secret
"""Ends the answer. Also used for padding."""

# One digit, one letter run, one operator run, line breaks, or one other blank; a leading space
# sticks to what follows, so that a cell of a grid is one token.
_PIECES = r" ?\d| ?\p{L}+| ?[^\s\p{L}\d]+|\n+|\s"


def train_tokenizer(
    texts: Iterable[str], vocabulary_size: int, context_tokens: int
) -> PreTrainedTokenizerFast:
    """Learn a vocabulary of at most `vocabulary_size` tokens from `texts`. Same texts, same result."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    marks = [AddedToken(mark, normalized=False) for mark in (QUESTION_MARK, ANSWER_MARK)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size - len(marks),
        min_frequency=2,
        special_tokens=[END_TOKEN],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens(marks)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_TOKEN,
        pad_token=END_TOKEN,
        model_max_length=context_tokens,
        clean_up_tokenization_spaces=False,
    )
