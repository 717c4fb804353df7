import itertools
from collections.abc import Iterator, Sequence

import pytest
import torch
from torch.nn import functional
from transformers import Qwen2ForCausalLM, Qwen2Tokenizer

from swarmd.models.architecture import new_model, tiny_config
from swarmd.models.corpus import Example
from swarmd.models.vocabulary import train_tokenizer
from swarmd.models.warm_start import Phase, Progress, teach

EXAMPLES = [
    Example("2 plus 2", "4"),
    Example("a much longer question about the sum of 3 and 4", "7"),
    Example("1", "1 1 1 1 1"),
    Example("what is 5 minus 2", "3"),
    Example("4 minus 4", "0"),
]


@pytest.fixture(scope="module")
def tokenizer() -> Qwen2Tokenizer:
    return train_tokenizer([e.question for e in EXAMPLES] * 5, vocabulary_size=300, context_tokens=512)


def fresh_model(tokenizer: Qwen2Tokenizer) -> Qwen2ForCausalLM:
    return new_model(tiny_config(len(tokenizer), tokenizer.eos_token_id, "tiny"), seed=0)


def taught(tokenizer: Qwen2Tokenizer, phase: Phase) -> tuple[Qwen2ForCausalLM, list[Progress]]:
    model, seen = fresh_model(tokenizer), list[Progress]()
    teach(model, tokenizer, itertools.repeat(EXAMPLES), phase, seen.append)
    return model, seen


def answer_losses(model: Qwen2ForCausalLM, tokenizer: Qwen2Tokenizer) -> Iterator[torch.Tensor]:
    """Per example, the loss of each answer token, worked out one by one and without padding."""
    for example in EXAMPLES:
        prompt = tokenizer.encode(f"<question>{example.question}<answer>")
        answer = [*tokenizer.encode(example.answer), tokenizer.eos_token_id]
        logits_TV = model(input_ids=torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        yield functional.cross_entropy(logits_TV, torch.tensor(answer), reduction="none")


def test_the_loss_is_the_mean_over_answer_and_end_tokens_only(tokenizer: Qwen2Tokenizer) -> None:
    with torch.no_grad():
        expected = torch.cat(list(answer_losses(fresh_model(tokenizer), tokenizer))).mean()
    _, seen = taught(tokenizer, Phase(steps=1, learning_rate=1e-3))
    assert seen[0].loss == pytest.approx(float(expected), abs=1e-5)


def test_a_taught_model_gives_the_answers_and_ends_them(tokenizer: Qwen2Tokenizer) -> None:
    model, seen = taught(tokenizer, Phase(steps=60, learning_rate=3e-3, warmup_steps=5))
    assert seen[-1].loss < 0.1 < seen[0].loss
    for example in EXAMPLES:
        prompt = torch.tensor([tokenizer.encode(f"<question>{example.question}<answer>")])
        output = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=8
        )
        assert tokenizer.decode(output[0, prompt.shape[1] :]) == f"{example.answer}<end>"


def test_the_same_call_gives_the_same_model(tokenizer: Qwen2Tokenizer) -> None:
    phase = Phase(steps=3, learning_rate=1e-3)
    first, second = taught(tokenizer, phase)[0].state_dict(), taught(tokenizer, phase)[0].state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_progress_is_told_after_every_step(tokenizer: Qwen2Tokenizer) -> None:
    _, seen = taught(tokenizer, Phase(steps=3, learning_rate=1e-3))
    assert [(now.step, now.steps) for now in seen] == [(1, 3), (2, 3), (3, 3)]


def test_too_few_batches_are_an_error(tokenizer: Qwen2Tokenizer) -> None:
    batches: list[Sequence[Example]] = [EXAMPLES]
    with pytest.raises(ValueError, match="after 1 of 2 steps"):
        teach(fresh_model(tokenizer), tokenizer, batches, Phase(2, 1e-3), lambda _: None)


def test_the_rate_rises_then_stays_then_falls_to_zero() -> None:
    phase = Phase(steps=100, learning_rate=1.0, warmup_steps=10)
    assert phase.rate(0) == pytest.approx(0.1)
    assert phase.rate(9) == phase.rate(49) == 1.0
    assert phase.rate(75) == pytest.approx(0.5)
    assert phase.rate(100) == 0.0
    assert Phase(steps=100, learning_rate=1.0, decay=False).rate(99) == 1.0
