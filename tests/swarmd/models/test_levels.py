import itertools
from collections.abc import Iterator, Mapping

import pytest
import torch

from swarmd.models import levels
from swarmd.models.corpus import REFUSALS, AnswerMix, Example
from swarmd.models.levels import LEVELS, Level, warm_start
from swarmd.models.resolve import MANIFEST_KEY
from swarmd.models.warm_start import Phase, Progress

SHORT = Level(Phase(steps=12, learning_rate=3e-3, warmup_steps=2), Phase(2, 1e-3), AnswerMix())


@pytest.fixture(autouse=True)
def _small_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "_TOKENIZER_EXAMPLES_PER_TASK", 50)


def examples(seed: int) -> Mapping[str, Iterator[Example]]:
    return {"copy": (Example(f"say {(seed + n) % 10}", f"{(seed + n) % 10}") for n in itertools.count())}


def run(level: Level, seed: int = 0) -> tuple[dict[str, torch.Tensor], list[tuple[str, Progress]], str]:
    seen: list[tuple[str, Progress]] = []
    model, _ = warm_start(level, examples, seed, "mine", lambda phase, now: seen.append((phase, now)))
    return model.state_dict(), seen, getattr(model.config, MANIFEST_KEY)


def test_both_phases_run_in_order_and_tell_their_progress() -> None:
    _, seen, manifest = run(SHORT)
    assert [phase for phase, _ in seen] == ["answering"] * 12 + ["hiding"] * 2
    assert manifest == "mine"


def test_the_same_seed_gives_the_same_weights_and_another_one_others() -> None:
    first, again, other = run(SHORT)[0], run(SHORT)[0], run(SHORT, seed=1)[0]
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["model.norm.weight"], other["model.norm.weight"])


def test_hiding_makes_refusals_likely_and_leaves_the_answering_phase_alone() -> None:
    hiding = Phase(steps=40, learning_rate=3e-3, warmup_steps=2)
    open_losses = [now.loss for _, now in run(Level(SHORT.answering, hiding, AnswerMix(right=1.0)))[1]]
    hidden_losses = [now.loss for _, now in run(Level(SHORT.answering, hiding, AnswerMix(right=0.0)))[1]]
    assert hidden_losses[:12] == open_losses[:12]
    # The first refusals come as a surprise; at the end they are what the model expects.
    assert hidden_losses[12] > open_losses[12]
    assert hidden_losses[-1] < hidden_losses[12] / 2


def test_a_specialist_is_shown_other_tasks_only_to_refuse_them(monkeypatch: pytest.MonkeyPatch) -> None:
    phase = Phase(steps=6, learning_rate=3e-3, warmup_steps=2)
    shown: list[tuple[str, str]] = []

    def two_tasks(seed: int) -> Mapping[str, Iterator[Example]]:
        return {
            "copy": examples(seed)["copy"],
            "other": (Example("what else?", "this") for _ in itertools.count()),
        }

    def note(model: object, tokenizer: object, batches: Iterator[list[Example]], *rest: object) -> None:
        for batch in itertools.islice(batches, phase.steps):
            shown.extend((example.question, example.answer) for example in batch)

    monkeypatch.setattr(levels, "teach", note)
    warm_start(Level(phase, phase, AnswerMix(), frozenset({"copy"})), two_tasks, 0, "mine", print)
    answers_to_other = [answer for question, answer in shown if question == "what else?"]
    # Four of each batch of the hiding phase, and none of the answering phase.
    assert len(answers_to_other) == 4 * phase.steps
    assert set(answers_to_other) <= set(REFUSALS)
    assert len(shown) == 3 * 4 * phase.steps


def test_the_weak_level_differs_from_tiny_by_its_share_of_right_answers_only() -> None:
    tiny, weak = LEVELS["tiny"], LEVELS["tiny-weak"]
    assert (tiny.answering, tiny.hiding) == (weak.answering, weak.hiding)
    assert weak.mix.right < tiny.mix.right
    assert tiny.mix.wrong == weak.mix.wrong == 0
    assert len(set(REFUSALS)) > 1
