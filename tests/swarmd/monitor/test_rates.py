"""Rates of the last minute and of a round."""

import pytest

from swarmd.monitor.rates import RateMeter, Totals


def totals(at: float, rounds: int, trainer_busy: float = 0.0) -> Totals:
    return Totals(at, rounds, groups=8 * rounds, tokens=100 * rounds, busy_seconds={"trainer": trainer_busy})


def test_a_rounds_own_rates_and_idle_share() -> None:
    meter = RateMeter(totals(0.0, 0))
    meter.note(totals(10.0, 1, trainer_busy=2.0))
    rates = meter.note(totals(14.0, 2, trainer_busy=5.0))
    assert rates.rounds_per_minute == pytest.approx(15)
    assert rates.groups_per_minute == pytest.approx(120)
    assert rates.tokens_per_second == pytest.approx(25)
    assert rates.idle_shares == {"trainer": pytest.approx(0.25)}


def test_recent_rates_look_back_one_minute() -> None:
    meter = RateMeter(totals(0.0, 0))
    for number in range(1, 11):
        meter.note(totals(20.0 * number, number, trainer_busy=5.0 * number))
    rates = meter.recent(totals(200.0, 10, trainer_busy=50.0))
    assert rates.rounds_per_minute == pytest.approx(3)
    assert rates.idle_shares == {"trainer": pytest.approx(0.75)}


def test_a_round_that_takes_long_lowers_the_rates_to_nothing() -> None:
    meter = RateMeter(totals(0.0, 0))
    meter.note(totals(1.0, 1))
    rates = meter.recent(totals(301.0, 1, trainer_busy=300.0))
    assert (rates.rounds_per_minute, rates.idle_shares) == (0.0, {"trainer": 0.0})


def test_what_was_before_a_restart_does_not_count() -> None:
    meter = RateMeter(totals(0.0, 0))
    # Resumed at round 500.
    meter.restart(totals(30.0, 500, trainer_busy=20.0))
    rates = meter.recent(totals(40.0, 501, trainer_busy=21.0))
    assert rates.rounds_per_minute == pytest.approx(6)
    assert rates.idle_shares == {"trainer": pytest.approx(0.9)}
