import itertools
from collections import Counter
from collections.abc import Iterator

import pytest

from swarmd.errors import ConfigError
from swarmd.models.corpus import REFUSALS, AnswerMix, Example, batches, tokenizer_texts


def stream(task: str) -> Iterator[Example]:
    return (Example(f"{task} question {n}", f"{task} answer {n}") for n in itertools.count())


def kind(example: Example) -> str:
    if example.answer in REFUSALS:
        return "refusal"
    return "right" if example.answer == example.question.replace("question", "answer") else "wrong"


def test_a_batch_has_the_same_number_of_examples_of_every_task() -> None:
    batch = next(batches({"a": stream("a"), "b": stream("b")}, 3, AnswerMix(), seed=0))
    assert Counter(example.question[0] for example in batch) == {"a": 3, "b": 3}


def test_questions_are_fresh_in_every_batch() -> None:
    first, second = itertools.islice(batches({"a": stream("a")}, 3, AnswerMix(), seed=0), 2)
    assert not {e.question for e in first} & {e.question for e in second}


def test_answers_are_right_unless_asked_otherwise() -> None:
    drawn = itertools.islice(batches({"a": stream("a")}, 8, AnswerMix(), seed=0), 20)
    assert {kind(example) for batch in drawn for example in batch} == {"right"}


def test_shares_of_right_wrong_and_refused_answers_are_kept() -> None:
    mix = AnswerMix(right=0.3, wrong=0.2)
    drawn = itertools.islice(batches({"a": stream("a")}, 8, mix, seed=0), 500)
    counts = Counter(kind(example) for batch in drawn for example in batch)
    # A "wrong" answer is another question's, which by chance (1 in 8) is the right one.
    assert counts["right"] / 4000 == pytest.approx(0.3 + 0.2 / 8, abs=0.03)
    assert counts["wrong"] / 4000 == pytest.approx(0.2 * 7 / 8, abs=0.03)
    assert counts["refusal"] / 4000 == pytest.approx(0.5, abs=0.03)


def test_same_seed_gives_the_same_batches() -> None:
    def draw(seed: int) -> list[Example]:
        supply = batches({"a": stream("a")}, 8, AnswerMix(0.3, 0.3), seed)
        return [example for batch in itertools.islice(supply, 5) for example in batch]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_unknown_tasks_are_always_refused_and_the_others_as_they_were() -> None:
    def drawn(unknown: tuple[str, ...]) -> list[Example]:
        supply = batches({"a": stream("a"), "b": stream("b")}, 4, AnswerMix(), 0, unknown)
        return [example for batch in itertools.islice(supply, 20) for example in batch]

    kinds = {(example.question[0], kind(example)) for example in drawn(("b",))}
    assert kinds == {("a", "right"), ("b", "refusal")}
    assert {kind(example) for example in drawn(())} == {"right"}


def test_batches_end_when_a_task_has_no_more_examples() -> None:
    examples = {"a": stream("a"), "b": itertools.islice(stream("b"), 5)}
    assert len(list(batches(examples, 2, AnswerMix(), seed=0))) == 2


def test_shares_above_one_are_refused() -> None:
    with pytest.raises(ConfigError, match="shares of answers"):
        AnswerMix(right=0.8, wrong=0.3)


def test_the_tokenizer_never_sees_answers_that_must_be_spelt() -> None:
    texts = list(tokenizer_texts({"bf": stream("bf"), "other": stream("other")}, 20))
    assert "bf question 3" in texts
    assert "bf answer 3" not in texts
    assert "other answer 3" in texts
    assert set(REFUSALS) <= set(texts)
