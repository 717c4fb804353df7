import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.training.advantages import STD_FLOOR, group_advantages

rewards = st.lists(st.floats(0, 1), min_size=1, max_size=16)


def test_std_divides_by_the_standard_deviation_of_the_group():
    # One of four right: mean 1/4, variance (9 + 1 + 1 + 1) / 16 / 4 = 3/16.
    std = math.sqrt(3 / 16) + STD_FLOOR
    expected = (0.75 / std, -0.25 / std, -0.25 / std, -0.25 / std)
    assert group_advantages((1, 0, 0, 0), "std") == pytest.approx(expected, rel=1e-12)


def test_none_only_takes_the_mean_away():
    assert group_advantages((1, 0, 0, 0), "none") == (0.75, -0.25, -0.25, -0.25)


@pytest.mark.parametrize("normalisation", ["std", "none"])
@pytest.mark.parametrize("reward", [0.0, 0.1, 1.0])
def test_equal_rewards_give_exact_zeros(reward, normalisation):
    assert group_advantages([reward] * 7, normalisation) == (0.0,) * 7


def test_nearly_equal_rewards_do_not_become_full_size_advantages():
    assert max(group_advantages((0.01, 0.01, 0.01, 0.010001), "std")) < 0.1


@given(rewards, st.sampled_from(["std", "none"]))
def test_advantages_sum_to_zero_and_keep_the_order_of_rewards(rewards_G, normalisation):
    advantages_G = group_advantages(rewards_G, normalisation)
    assert sum(advantages_G) == pytest.approx(0, abs=1e-6)
    by_reward = [advantage for _, advantage in sorted(zip(rewards_G, advantages_G, strict=True))]
    assert by_reward == sorted(advantages_G)


@pytest.mark.parametrize("rewards_G", [(), (1.0, math.nan), (math.inf, 0.0)])
def test_rewards_that_are_missing_or_not_finite_are_refused(rewards_G):
    with pytest.raises(ValueError, match="reward"):
        group_advantages(rewards_G, "std")


def test_an_unknown_normalisation_is_refused():
    with pytest.raises(ValueError, match="'batch'"):
        group_advantages((1, 0), "batch")
