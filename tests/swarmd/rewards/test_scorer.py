import math
import os
import time

import pytest

from swarmd.rewards.isolation import Isolation
from swarmd.rewards.messages import ScoreReason
from swarmd.rewards.sandbox import Sandbox
from swarmd.rewards.scorer import MAX_COMPLETION_CHARACTERS, Scorer, ScoringWork
from swarmd.types import TaskReference

SUM = TaskReference("sum", "d", 1, 0)


class AddsUp:
    """A task whose scorer does what hostile text makes real ones do."""

    question = "1 + 1 = ? ✓"

    def score(self, answer):
        match answer:
            case "crash":
                os._exit(0)
            case "hang":
                time.sleep(60)
            case "raise":
                raise RecursionError
            case "none":
                return None
        return {"2": 1.0, "two": 0.995, "3": 0.3, "nan": math.nan, "inf": math.inf, "-5": -5, "7": 7}[answer]


class Broken:
    @property
    def question(self):
        raise ValueError("no such task")


class Known:
    def task(self, reference):
        return {"sum": AddsUp(), "broken": Broken()}.get(reference.dataset)

    def fault(self, number):
        return [None, "task broken: no such task"][number]


@pytest.fixture(params=[(), ("sum", "broken")], ids=["together", "alone"])
def scorer(request):
    isolations = []

    def make(strict=False, timeout_seconds=5.0):
        isolation = Isolation(
            Sandbox((), (), 0), ScoringWork(Known(), str.strip), timeout_seconds, 100_000_000
        )
        isolations.append(isolation)
        return Scorer(isolation, strict=strict, alone=request.param)

    yield make
    for isolation in isolations:
        isolation.close()


def test_partial_scores_are_kept_and_bounded(scorer):
    reply = scorer().score(SUM, ["2", "two", "3", "-5", "7"])
    assert reply.question == AddsUp.question
    assert reply.rewards_G == (1.0, 0.995, 0.3, 0.0, 1.0)
    assert reply.reasons_G == (None,) * 5


def test_strict_rewards_are_one_above_the_threshold_and_zero_below(scorer):
    assert scorer(strict=True).score(SUM, ["2", "two", "3", "-5"]).rewards_G == (1.0, 1.0, 0.0, 0.0)


def test_answer_is_extracted_before_it_is_scored(scorer):
    assert scorer().score(SUM, [" 2\n"]).rewards_G == (1.0,)


@pytest.mark.parametrize(
    ("completion", "reason"),
    [
        ("crash", ScoreReason.CRASHED),
        ("hang", ScoreReason.TIMEOUT),
        ("raise", ScoreReason.INVALID),
        ("none", ScoreReason.INVALID),
        ("nan", ScoreReason.INVALID),
        ("inf", ScoreReason.INVALID),
        ("unheard of", ScoreReason.INVALID),
        ("2" + " " * MAX_COMPLETION_CHARACTERS, ScoreReason.TOO_LONG),
    ],
)
def test_poison_completion_gets_nothing_and_the_others_of_its_group_their_score(scorer, completion, reason):
    reply = scorer(timeout_seconds=2.0).score(SUM, ["2", completion, "3", "2"])
    assert reply.rewards_G == (1.0, 0.0, 0.3, 1.0)
    assert reply.reasons_G == (None, reason, None, None)


def test_group_of_poison_only_is_answered_for_each(scorer):
    reply = scorer().score(SUM, ["crash"] * 5)
    assert reply.reasons_G == (ScoreReason.CRASHED,) * 5


def test_unknown_and_broken_tasks_have_no_question(scorer):
    unknown = scorer().score(TaskReference("other", "d", 1, 0), ["2", "2"])
    assert unknown.question is None
    assert unknown.reasons_G == (ScoreReason.UNKNOWN_TASK,) * 2
    broken = scorer().score(TaskReference("broken", "d", 1, 0), ["2"])
    assert broken.question is None
    assert broken.reasons_G == (ScoreReason.NOT_REGENERATED,)


def test_questions_are_regenerated_and_the_missing_ones_are_none(scorer):
    references = [SUM, TaskReference("broken", "d", 1, 0), TaskReference("other", "d", 1, 0), SUM]
    assert scorer().regenerate(references).questions == (AddsUp.question, None, None, AddsUp.question)


def test_warm_up_tells_what_is_wrong_with_a_kind_of_task(scorer):
    assert scorer().fault_of_warm_up(0) is None
    assert scorer().fault_of_warm_up(1) == "task broken: no such task"
    assert scorer().fault_of_warm_up(2) is ScoreReason.INVALID
