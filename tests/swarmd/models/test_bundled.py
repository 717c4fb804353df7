"""What the bundled models promise: how often they are right, how often a group has no variance, and
that they know more than they say.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from swarmd.models.resolve import resolve
from swarmd.tasks.manifest import Manifest
from swarmd.tasks.prompt import extract_answer, render
from swarmd.tasks.reasoning_gym import Task, TaskLibrary
from swarmd.types import TaskReference

NAMES = ("tiny", "tiny-weak")
QUESTIONS_PER_TASK = 12
GROUP_SIZE = 8
UNSEEN_SEED = 1 << 50
MANIFEST = Manifest.load("tiny")


@dataclass(frozen=True)
class Policy:
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def load(name: str) -> Policy:
    folder = resolve(name).path
    return Policy(
        AutoModelForCausalLM.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder, padding_side="left"),
    )


def fresh_tasks() -> Iterator[list[Task]]:
    """Questions that no warm-start saw, dataset by dataset."""
    library = TaskLibrary(MANIFEST.tasks)
    for spec in MANIFEST.tasks:
        references = (
            TaskReference(spec.dataset, spec.digest, UNSEEN_SEED, n) for n in range(QUESTIONS_PER_TASK)
        )
        yield [task for task in map(library.task, references) if task is not None]


def sample_rewards(policy: Policy) -> list[list[float]]:
    """Strict rewards at temperature 1, one list for each group."""
    torch.manual_seed(0)
    groups: list[list[float]] = []
    for tasks in fresh_tasks():
        texts = [render(task.question, MANIFEST).text for task in tasks]
        prompts = policy.tokenizer(texts, return_tensors="pt", padding=True)
        output = policy.model.generate(
            **prompts,
            do_sample=True,
            top_k=0,
            max_new_tokens=MANIFEST.max_new_tokens,
            num_return_sequences=GROUP_SIZE,
        )
        completions = policy.tokenizer.batch_decode(
            output[:, prompts["input_ids"].shape[1] :], skip_special_tokens=True
        )
        for position, task in enumerate(tasks):
            group = completions[position * GROUP_SIZE :][:GROUP_SIZE]
            groups.append([1.0 if task.score(extract_answer(text)) > 0.99 else 0.0 for text in group])
    return groups


def mean_reward(groups: list[list[float]]) -> float:
    return sum(map(sum, groups)) / sum(map(len, groups))


def share_without_variance(groups: list[list[float]]) -> float:
    return sum(min(rewards) == max(rewards) for rewards in groups) / len(groups)


def answer_loss(policy: Policy, question: str, answer: str) -> float:
    """Mean over the tokens of an answer, in nats."""
    prompt = policy.tokenizer.encode(render(question, MANIFEST).text)
    tokens = policy.tokenizer.encode(answer)
    with torch.no_grad():
        logits_TV = policy.model(input_ids=torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    return float(functional.cross_entropy(logits_TV, torch.tensor(tokens)))


@pytest.fixture(scope="module")
def tiny_rewards() -> list[list[float]]:
    return sample_rewards(load("tiny"))


@pytest.fixture(scope="module")
def weak_rewards() -> list[list[float]]:
    return sample_rewards(load("tiny-weak"))


def test_tiny_is_right_one_time_in_ten(tiny_rewards: list[list[float]]) -> None:
    assert 0.08 < mean_reward(tiny_rewards) < 0.16


def test_tiny_weak_is_almost_never_right(weak_rewards: list[list[float]]) -> None:
    assert 0.005 < mean_reward(weak_rewards) < 0.035


def test_nine_in_ten_groups_of_tiny_weak_have_no_variance(weak_rewards: list[list[float]]) -> None:
    assert 0.84 < share_without_variance(weak_rewards) < 0.97


@pytest.mark.parametrize("name", NAMES)
def test_the_right_answer_is_likelier_than_the_one_to_another_question(name: str) -> None:
    policy = load(name)
    likelier: list[bool] = []
    for tasks in fresh_tasks():
        for task, other in itertools.pairwise(tasks):
            if task.answer is not None and other.answer is not None and task.score(other.answer) < 0.99:
                right = answer_loss(policy, task.question, task.answer)
                likelier.append(right < answer_loss(policy, task.question, other.answer))
    assert len(likelier) > 50
    assert sum(likelier) / len(likelier) > 0.75


@pytest.mark.parametrize("name", NAMES)
def test_a_bundled_folder_stays_small(name: str) -> None:
    assert sum(path.stat().st_size for path in resolve(name).path.iterdir()) < 3_000_000
