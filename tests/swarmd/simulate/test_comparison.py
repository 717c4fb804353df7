"""Comparison of arms: best rate against best, within seeds."""

from collections.abc import Callable

import pytest

from swarmd.errors import ConfigError
from swarmd.simulate.comparison import PRIMARY, SECONDARY, Runs, compare, parse_contrast
from swarmd.simulate.measures import measure
from swarmd.simulate.rows import Row

MakeRows = Callable[..., list[Row]]


@pytest.fixture
def runs(make_rows: MakeRows) -> Runs:
    """8/0 earns more at 1e-3, 4/4 at 3e-4; the seeds of 4/4 are 1 to 4, those of 8/0 are 0 to 3."""
    found = []
    for seed in range(4):
        for rate, reward in ((1e-3, 0.2), (3e-4, 0.1)):
            own = (reward + 0.01 * seed,) * 20
            found.append(measure(make_rows("8/0", seed, own=own, learning_rate=rate)))
    for seed in range(1, 5):
        for rate, reward in ((1e-3, 0.1), (3e-4, 0.25)):
            own = (reward + 0.01 * seed + 0.001 * seed,) * 20
            found.append(measure(make_rows("4/4", seed, own=own, learning_rate=rate)))
    return Runs(found)


def test_arms_are_compared_at_the_best_rate_of_each_and_within_seeds(runs: Runs) -> None:
    (contrast,) = compare(runs, [("4/4", "8/0")], SECONDARY)
    assert (contrast.arm_rate, contrast.base_rate) == (3e-4, 1e-3)
    assert contrast.difference.seeds == 3
    # Seeds 1, 2, 3: 20 rounds of 0.05 + 0.001 * seed more.
    assert contrast.difference.value == pytest.approx(20 * 0.052)
    assert contrast.gain == pytest.approx((0.25 + 0.022) / (0.2 + 0.02) - 1)
    assert (contrast.test.p, contrast.test.smallest_p) == (0.25, 0.25)


def test_p_values_are_adjusted_over_the_contrasts_of_a_measure(runs: Runs) -> None:
    contrasts = compare(runs, [("4/4", "8/0"), ("8/0", "4/4")], SECONDARY)
    assert [contrast.holm_p for contrast in contrasts] == [0.5, 0.5]


def test_arms_stand_in_the_order_of_their_own_groups(make_rows: MakeRows) -> None:
    names = ["2/6", "4/4+frozen", "8/0", "4/4", "16/0"]
    assert Runs(measure(make_rows(name, 0)) for name in names).arms == (
        "16/0",
        "8/0",
        "4/4",
        "4/4+frozen",
        "2/6",
    )


def test_an_arm_that_is_not_there_is_said_with_those_that_are(runs: Runs) -> None:
    with pytest.raises(ConfigError, match=r"there is no arm '6/2': there are 8/0, 4/4"):
        compare(runs, [("6/2", "8/0")], PRIMARY)


def test_arms_without_a_common_seed_cannot_be_compared(make_rows: MakeRows) -> None:
    apart = Runs([measure(make_rows("8/0", 0)), measure(make_rows("4/4", 1))])
    with pytest.raises(ConfigError, match=r"4/4 \(seeds 1\) and 8/0 \(seeds 0\) have no seed in common"):
        compare(apart, [("4/4", "8/0")], PRIMARY)


def test_the_same_run_twice_is_an_error(make_rows: MakeRows) -> None:
    run = measure(make_rows("8/0", 0))
    with pytest.raises(ConfigError, match=r"arm 8/0 at 0\.0003 with seed 0 is there twice"):
        Runs([run, run])


def test_contrasts_are_written_with_vs() -> None:
    assert parse_contrast("4/4:replay.sampler=fresh,replay.max_uses=2 vs 4/4") == (
        "4/4:replay.sampler=fresh,replay.max_uses=2",
        "4/4",
    )
    for text in ("4/4", "4/4 vs ", " vs 8/0", "4/4-8/0"):
        with pytest.raises(ConfigError, match="expected 'ARM vs BASE'"):
            parse_contrast(text)
