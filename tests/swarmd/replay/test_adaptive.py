"""Adaptive I and J."""

import numpy as np
import pytest

from swarmd.replay.adaptive import (
    EVALUATIONS,
    ROUNDS_BETWEEN,
    AdaptiveMix,
    MixLimits,
    RoundSignal,
    detrended_spread,
    next_external,
)

LIMITS = MixLimits(least=1, most=6, most_spread=0.05)


@pytest.mark.parametrize(
    ("own", "external", "oscillates", "expected"),
    [
        (0.3, 1.0, False, 5),
        (0.8, 1.0, False, 4),
        (0.8, 0.5, False, 3),
        (0.3, 1.0, True, 3),
    ],
)
def test_it_goes_up_with_the_signal_and_down_without_or_when_the_reward_oscillates(
    own: float, external: float, oscillates: bool, expected: int
) -> None:
    assert (
        next_external(4, LIMITS, own_signal=own, external_signal=external, oscillates=oscillates) == expected
    )


def test_it_stays_within_its_limits() -> None:
    mix = AdaptiveMix(LIMITS, 4)
    for _ in range(20 * ROUNDS_BETWEEN):
        mix.note_round(RoundSignal(own=0.0, external=1.0))
    assert mix.external_groups == 6
    for _ in range(20 * ROUNDS_BETWEEN):
        mix.note_round(RoundSignal(own=1.0, external=0.0))
    assert mix.external_groups == 1
    assert AdaptiveMix(LIMITS, 8).external_groups == 6


def test_one_decision_is_made_in_so_many_rounds_on_their_means() -> None:
    mix = AdaptiveMix(LIMITS, 4)
    for number in range(ROUNDS_BETWEEN):
        assert mix.external_groups == 4
        mix.note_round(RoundSignal(own=float(number % 2), external=1.0))
    assert mix.external_groups == 5


def test_an_oscillating_reward_is_backed_off_from_once() -> None:
    mix = AdaptiveMix(LIMITS, 4)
    for number in range(EVALUATIONS):
        mix.note_held_out(number + 1, 0.2 + 0.2 * (number % 2))
        # Seen again in rounds without an evaluation.
        mix.note_held_out(number + 1, 0.2 + 0.2 * (number % 2))
    for _ in range(ROUNDS_BETWEEN):
        mix.note_round(RoundSignal(own=0.3, external=1.0))
    assert mix.external_groups == 3
    for _ in range(ROUNDS_BETWEEN):
        mix.note_round(RoundSignal(own=0.3, external=1.0))
    assert mix.external_groups == 4


def test_a_steady_rise_is_no_oscillation() -> None:
    mix = AdaptiveMix(LIMITS, 4)
    for number in range(EVALUATIONS):
        mix.note_held_out(number + 1, 0.1 * number)
    for _ in range(ROUNDS_BETWEEN):
        mix.note_round(RoundSignal(own=0.3, external=1.0))
    assert mix.external_groups == 5


def test_a_mix_without_own_or_external_groups_can_be_left() -> None:
    none_external = AdaptiveMix(MixLimits(0, 8, 0.05), 0)
    none_own = AdaptiveMix(MixLimits(0, 8, 0.05), 8)
    for _ in range(ROUNDS_BETWEEN):
        none_external.note_round(RoundSignal(own=0.2, external=None))
        none_own.note_round(RoundSignal(own=None, external=0.5))
    assert (none_external.external_groups, none_own.external_groups) == (1, 7)


def test_the_spread_is_that_of_the_residuals_of_a_line() -> None:
    x, noise = np.arange(6.0), np.array([1.0, -1.0, 0.5, -0.5, 2.0, -2.0])
    slope, intercept = np.polyfit(x, noise, 1)
    expected = np.sqrt(np.sum((noise - slope * x - intercept) ** 2) / 4)
    assert detrended_spread(range(6), [*(0.3 * x + noise)]) == pytest.approx(expected)
    assert detrended_spread([0, 1], [5.0, 9.0]) == 0.0
