"""What the warm-start shows the model: questions with answers to copy.

A batch holds the same number of examples of every task, because batches of one task at a time do
not train. An answer is right, wrong (the right answer to another question of the same task), or a
fixed refusal; `AnswerMix` says how often. A model taught to refuse still can answer, as a base model
can that does not know the format.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from swarmd.errors import ConfigError

__all__ = ["REFUSALS", "AnswerMix", "Example", "batches", "tokenizer_texts"]

REFUSALS = ("I cannot tell", "This is too hard", "Ask me later", "Unsure")
"""Never right for any task."""

_SPELT_OUT = frozenset({"bf"})
"""Tasks whose answers are dictionary words. As single tokens they could be guessed, not worked out."""


@dataclass(frozen=True)
class Example:
    """A question and the answer to be learnt."""

    question: str
    answer: str


@dataclass(frozen=True)
class AnswerMix:
    """Shares of right and wrong answers, each in 0..1; the rest are refusals."""

    right: float = 1.0
    wrong: float = 0.0

    def __post_init__(self) -> None:
        if self.right < 0 or self.wrong < 0 or self.right + self.wrong > 1:
            raise ConfigError(
                f"shares of answers must be in 0..1 together, got {self.right} and {self.wrong}"
            )


_REFUSED = AnswerMix(right=0.0)


def batches(
    examples: Mapping[str, Iterator[Example]],
    per_task: int,
    mix: AnswerMix,
    seed: int,
    unknown: Collection[str] = (),
) -> Iterator[Sequence[Example]]:
    """Batches of `per_task` examples of every task, for ever or until a task has no more.

    `examples` gives, for each task, fresh questions with right answers. Those of `unknown` tasks are all
    refused.
    """
    chance = random.Random(seed)
    while True:
        batch: list[Example] = []
        for task, stream in examples.items():
            fresh = list(islice(stream, per_task))
            if len(fresh) < per_task:
                return
            answers = [example.answer for example in fresh]
            of_task = _REFUSED if task in unknown else mix
            batch += [
                Example(example.question, _answer(example.answer, answers, of_task, chance))
                for example in fresh
            ]
        yield batch


def tokenizer_texts(examples: Mapping[str, Iterator[Example]], per_task: int) -> Iterator[str]:
    """What the tokenizer learns from: `per_task` questions of each task with their answers, and refusals."""
    for task, stream in examples.items():
        for example in islice(stream, per_task):
            yield example.question
            if task not in _SPELT_OUT:
                yield example.answer
    for refusal in REFUSALS:
        yield from [refusal] * (per_task // 10)


def _answer(right: str, others: Sequence[str], mix: AnswerMix, chance: random.Random) -> str:
    draw = chance.random()
    if draw < mix.right:
        return right
    if draw < mix.right + mix.wrong:
        return chance.choice(others)
    return chance.choice(REFUSALS)
