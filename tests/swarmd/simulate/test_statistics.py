"""Statistics over seeds, against scipy, brute force and worked values."""

import itertools
import math
import random

import numpy as np
import pytest
from scipy import stats

from swarmd.simulate.statistics import MOST_EXACT_SEEDS, estimate, holm, iqm, sign_flip


def test_the_interquartile_mean_is_the_mean_of_the_middle_half() -> None:
    assert iqm([100.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, -100.0]) == pytest.approx((2 + 3 + 4 + 5) / 4)
    assert iqm([1.0, 2.0, 6.0]) == 3.0


@pytest.mark.parametrize("pairs", [1, 2, 3, 5, 8])
def test_the_sign_flip_test_goes_through_all_flips(pairs: int) -> None:
    differences = [random.Random(pairs).gauss(0.4, 1.0) for _ in range(pairs)]
    observed = abs(sum(differences))
    flips = [
        abs(sum(sign * value for sign, value in zip(signs, differences, strict=True)))
        for signs in itertools.product((1, -1), repeat=pairs)
    ]
    expected = sum(flip >= observed - 1e-9 for flip in flips) / len(flips)
    assert sign_flip(differences).p == pytest.approx(expected)
    assert sign_flip(differences).smallest_p == pytest.approx(2 / 2**pairs)


def test_the_sign_flip_test_agrees_with_scipy() -> None:
    generator = np.random.default_rng(3)
    mine, theirs = generator.normal(0.5, 1.0, 9), generator.normal(0.0, 1.0, 9)
    reference = stats.permutation_test(
        (mine, theirs),
        lambda a, b, axis: np.mean(a - b, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=np.inf,
    )
    assert sign_flip(list(mine - theirs)).p == pytest.approx(reference.pvalue)


def test_with_many_pairs_the_test_is_random_and_never_gives_zero() -> None:
    found = sign_flip([1.0] * (MOST_EXACT_SEEDS + 4))
    assert 0 < found.p < 1e-3
    assert found == sign_flip([1.0] * (MOST_EXACT_SEEDS + 4))


def test_differences_of_zero_are_no_difference() -> None:
    assert sign_flip([0.0, 0.0, 0.0]).p == 1.0


def test_holm_multiplies_by_the_contrasts_that_are_left_and_never_decreases() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_interval_is_that_of_scipys_percentile_bootstrap() -> None:
    values = [random.Random(7).gauss(10.0, 2.0) + shift for shift in (0.0, 0.5, 3.0, -2.0, 1.0, 4.0, -1.0)]
    found = estimate(values)
    reference = stats.bootstrap(
        (values,),
        lambda x, axis: stats.trim_mean(x, 0.25, axis=axis),
        n_resamples=20_000,
        method="percentile",
        rng=np.random.default_rng(1),
    ).confidence_interval
    assert (found.value, found.seeds) == (iqm(values), 7)
    width = reference.high - reference.low
    assert abs(found.low - reference.low) < 0.05 * width
    assert abs(found.high - reference.high) < 0.05 * width
    assert found == estimate(list(reversed(values)))


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(5)
    covered = 0
    for _ in range(100):
        found = estimate(list(generator.normal(0.0, 1.0, 12)))
        covered += found.low <= 0.0 <= found.high
    # A percentile bootstrap of twelve values is a little too narrow; half of the times would be wrong.
    assert covered > 80


def test_one_seed_has_no_interval() -> None:
    found = estimate([2.0])
    assert found.value == 2.0
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    with pytest.raises(ValueError, match="needs a value"):
        estimate([])
