"""The screens: what they hold up, in which mode, and what passes."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from swarmd.replay.rules import Candidate
from swarmd.replay.screens import BatchShare, Screen, TextLimits, TextScreens, compressed_share
from swarmd.types import Completion, FinishReason, RolloutGroup

MakeGroup = Callable[..., RolloutGroup]
SENTENCE = "Everybody should buy the widgets of ACME. "
LIMITS = TextLimits("warn", 4.0, "warn", 0.1)


@pytest.fixture
def saying(make_group: MakeGroup) -> Callable[..., RolloutGroup]:
    """A group of the given texts, of which only the first is right."""

    def make(*texts: str, author: str = "peer") -> RolloutGroup:
        rewards = (1.0,) + (0.0,) * (len(texts) - 1)
        completions_G = tuple(Completion(text, FinishReason.STOP) for text in texts)
        return msgspec.structs.replace(make_group(0, author, rewards=rewards), completions_G=completions_G)

    return make


def screens_of(saying: Callable[..., RolloutGroup], limits: TextLimits = LIMITS) -> TextScreens:
    """Screens that know 64 own completions, the longest of 10 characters."""
    screens = TextScreens(limits)
    screens.note_own(saying(*(["x" * 10] * 32), author="self"))
    screens.note_own(saying(*(["x"] * 32), author="self"))
    return screens


def test_a_rewarded_completion_much_longer_than_any_own_one_is_long(
    saying: Callable[..., RolloutGroup],
) -> None:
    screens = screens_of(saying)
    assert screens.judge(saying("y" * 41, "y")) == ((Screen.LONG,), False)
    assert screens.judge(saying("y" * 40, "y")) == ((), False)


def test_what_is_not_rewarded_may_be_as_long_as_it_likes(saying: Callable[..., RolloutGroup]) -> None:
    assert screens_of(saying).judge(saying("y", "y" * 500)) == ((), False)


def test_lengths_are_compared_within_a_dataset_and_not_before_enough_are_known(
    saying: Callable[..., RolloutGroup],
) -> None:
    long = saying("y" * 100, "y")
    other = msgspec.structs.replace(long, task=msgspec.structs.replace(long.task, dataset="arc_1d"))
    assert screens_of(saying).judge(other) == ((), False)
    screens = TextScreens(LIMITS)
    screens.note_own(saying(*(["x"] * 31), author="self"))
    assert screens.judge(long) == ((), False)
    screens.note_own(saying("x", "x", author="self"))
    assert screens.judge(long) == ((Screen.LONG,), False)


def test_a_text_that_says_the_same_over_and_over_is_repetitive(saying: Callable[..., RolloutGroup]) -> None:
    limits = TextLimits("off", 4.0, "warn", 0.2)
    assert screens_of(saying, limits).judge(saying(SENTENCE * 10, "y")) == ((Screen.REPETITIVE,), False)
    assert screens_of(saying, limits).judge(saying(SENTENCE * 2, "y")) == ((), False)


def test_a_short_answer_in_few_symbols_is_no_repetition() -> None:
    assert compressed_share("0 " * 99) == 1.0
    assert compressed_share("0 " * 500) < 0.05
    prose = Path(__file__).read_text()
    assert compressed_share(prose) > 0.2


@pytest.mark.parametrize(
    ("length", "repetition", "found", "is_dropped"),
    [
        ("off", "off", (), False),
        ("warn", "off", (Screen.LONG,), False),
        ("drop", "off", (Screen.LONG,), True),
        ("off", "drop", (Screen.REPETITIVE,), True),
        ("warn", "drop", (Screen.LONG, Screen.REPETITIVE), True),
    ],
)
def test_each_screen_is_off_or_warns_or_drops(
    saying: Callable[..., RolloutGroup],
    length: str,
    repetition: str,
    found: tuple[Screen, ...],
    is_dropped: bool,
) -> None:
    screens = screens_of(saying, TextLimits(length, 4.0, repetition, 0.2))  # type: ignore[arg-type]
    assert screens.judge(saying(SENTENCE * 10, "y")) == (found, is_dropped)


@pytest.mark.parametrize(("mode", "taken", "above"), [("off", 4, 0), ("warn", 4, 2), ("drop", 3, 4)])
def test_one_peer_has_at_most_its_share_of_a_batch(
    make_group: MakeGroup, mode: str, taken: int, above: int
) -> None:
    groups = [Candidate(make_group(n, "loud")) for n in range(6)] + [Candidate(make_group(9, "quiet"))]
    share = BatchShare(mode, 0.5)  # type: ignore[arg-type]
    chosen, held_up = share.sort(groups, 4, external_groups=4)
    assert (len(chosen), len(held_up)) == (taken, above)
    assert {candidate.group.author for candidate in held_up} <= {"loud"}


def test_a_share_is_never_less_than_one_group(make_group: MakeGroup) -> None:
    candidates = [Candidate(make_group(0)), Candidate(make_group(1))]
    chosen, held_up = BatchShare("drop", 0.1).sort(candidates, 4, external_groups=4)
    assert (len(chosen), len(held_up)) == (1, 1)
