"""What a rule is held to, whoever wrote it, and how one is loaded."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from swarmd.errors import ConfigError, SamplingRuleError
from swarmd.replay.rules import Candidate, Draw, Rule, answer, import_rule, weighted_order
from swarmd.types import RolloutGroup

MakeGroup = Callable[..., RolloutGroup]


@pytest.fixture
def draw(make_group: MakeGroup) -> Draw:
    candidates = tuple(Candidate(make_group(number)) for number in range(3))
    return Draw(candidates, 2, (make_group(9, "self"),), random.Random(0))


def fails(draw: Draw) -> list[Candidate]:
    raise KeyError("nothing")


def answers_groups(draw: Draw) -> list[Candidate]:
    return [draw.candidates[0].group]  # type: ignore[list-item]


def answers_twice(draw: Draw) -> list[Candidate]:
    return [draw.candidates[0], draw.candidates[0]]


def answers_others(draw: Draw) -> list[Candidate]:
    return [Candidate(draw.own[0])]


def merges_with_a_peer(draw: Draw) -> list[Candidate]:
    return [draw.candidates[0].merged(draw.candidates[1].group)]


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (fails, "fails failed: KeyError: 'nothing'"),
        (answers_groups, "must return candidates of the draw"),
        (answers_twice, "returned a candidate twice"),
        (answers_others, "must return candidates of the draw"),
        (merges_with_a_peer, "merged a candidate with a group that is not of the draw"),
    ],
)
def test_an_answer_that_no_rule_may_give_is_an_error_that_names_the_rule(
    rule: Rule, says: str, draw: Draw
) -> None:
    with pytest.raises(SamplingRuleError, match=f"test_rules:{rule.__name__}") as caught:
        answer(rule, draw)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_weight_zero_comes_last_and_still_comes(draw: Draw) -> None:
    for seed in range(20):
        order = weighted_order(draw.candidates, lambda c: float(c.group.task.index != 1), random.Random(seed))
        assert [c.group.task.index for c in order][-1] == 1


def test_a_rule_is_found_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draw: Draw
) -> None:
    (tmp_path / "rule_of_mine.py").write_text("def last_first(draw):\n    return draw.candidates[::-1]\n")
    monkeypatch.chdir(tmp_path)
    rule = import_rule("rule_of_mine:last_first")
    assert answer(rule, draw) == list(draw.candidates[::-1])


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("rule_that_is_not:f", "module rule_that_is_not cannot be imported"),
        ("json:nothing", "module json has no function nothing"),
        ("broken_rule:f", "cannot be imported (SyntaxError"),
    ],
)
def test_a_rule_that_cannot_be_loaded_is_one_line(
    name: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_rule.py").write_text("def f(:\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"replay\.sampler") as caught:
        import_rule(name)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_file_of_the_working_directory_takes_the_place_of_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "colorsys.py").write_text("def rule(draw):\n    return []\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="module colorsys has no function rule"):
        import_rule("colorsys:rule")
