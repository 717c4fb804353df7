"""Own success by kind of task."""

from collections.abc import Callable

import pytest

from swarmd.replay.rules import kind
from swarmd.replay.successes import RECENT_GROUPS, Successes
from swarmd.types import RolloutGroup

MakeGroup = Callable[..., RolloutGroup]


def test_a_kind_that_was_never_met_counts_as_half_right() -> None:
    assert Successes().of(("basic_arithmetic", "digest")) == 0.5


def test_it_is_the_mean_reward_with_two_completions_more_at_half(make_group: MakeGroup) -> None:
    successes = Successes()
    group = make_group(0, "self", rewards=(1.0, 0.0, 0.0, 0.0, 0.0, 0.0))
    successes.note(group)
    assert successes.of(kind(group)) == pytest.approx((1 + 1) / (6 + 2))
    assert successes.of(("basic_arithmetic", "other difficulty")) == 0.5


def test_only_the_newest_groups_count(make_group: MakeGroup) -> None:
    successes = Successes()
    for number in range(RECENT_GROUPS):
        successes.note(make_group(number, "self", rewards=(0.0, 0.0)))
    for number in range(RECENT_GROUPS):
        successes.note(make_group(number, "self", rewards=(1.0, 1.0)))
    assert successes.of(kind(make_group(0))) == pytest.approx((32 + 1) / (32 + 2))
