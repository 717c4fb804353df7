"""Measures of one swarm."""

from collections.abc import Callable

import numpy as np
import pytest

from swarmd.simulate.measures import mean_height, measure, spread
from swarmd.simulate.rows import Row

MakeRows = Callable[..., list[Row]]


def test_a_run_comes_down_to_means_over_its_nodes(make_rows: MakeRows) -> None:
    found = measure(
        make_rows("4/4", 3, own=(0.2,) * 20, nodes=1)
        + make_rows("4/4", 3, own=(0.4,) * 20, heldout=(0.0,) * 5, nodes=1, first_node=1)
    )
    assert (found.arm, found.learning_rate, found.seed, found.nodes) == ("4/4", 3e-4, 3, 2)
    assert found.own_total == pytest.approx((4.0 + 8.0) / 2)
    # Trapezoids of 0, .1, .2, .2, .3: (0.05 + .15 + .2 + .25) / 4; the other node has none.
    assert found.heldout_auc == pytest.approx(0.1625 / 2)
    assert found.heldout_last == pytest.approx(0.15)
    assert (found.own_signal, found.batch_signal) == (0.25, 0.75)
    assert (found.entropy, found.completion_tokens, found.updates, found.own_groups) == (0.5, 5.0, 20.0, 80.0)
    assert found.heldout_auc_by_task == pytest.approx({"arc_1d": 0.0, "bf": 0.1625 / 2})
    assert found.own_mean_by_task == pytest.approx({"bf": 0.3})
    assert found.own_curve[0] == (1.0, pytest.approx(0.3))
    assert found.heldout_curve[-1] == (20.0, pytest.approx(0.15))


def test_nodes_that_do_not_learn_are_left_out(make_rows: MakeRows) -> None:
    honest = make_rows("4/4", 0, own=(0.2,) * 20)
    found = measure(honest + make_rows("4/4", 0, own=(1.0,) * 20, kind="frozen", first_node=8))
    assert found.own_total == measure(honest).own_total
    with pytest.raises(ValueError, match="no node that learns"):
        measure(make_rows("4/4", 0, kind="frozen"))


def test_ends_of_the_held_out_curve_are_kept_by_what_nodes_started_from(make_rows: MakeRows) -> None:
    weak = make_rows("4/4", 0, heldout=(0.0, 0.1, 0.1, 0.2, 0.4), nodes=2, model="weak")
    strong = make_rows("4/4", 0, heldout=(0.5, 0.5, 0.5, 0.5, 0.6), nodes=1, model="strong", first_node=2)
    other = make_rows("4/4", 0, heldout=(0.0, 0.0, 0.0, 0.0, 0.8), nodes=1, model="weak", first_node=3)
    found = measure(weak + strong + other).heldout_by_start
    assert found["strong"]["bf"] == (0.5, 0.6)
    assert found["weak"]["bf"] == pytest.approx((0.0, (0.4 + 0.4 + 0.8) / 3))
    assert found["weak"]["arc_1d"] == (0.0, 0.0)


def test_the_mean_height_takes_uneven_rounds_into_account() -> None:
    assert mean_height(((0.0, 0.0), (1.0, 1.0), (4.0, 1.0))) == pytest.approx((0.5 + 3.0) / 4)
    assert mean_height(((5.0, 0.7),)) == 0.7


def test_the_spread_is_that_around_a_parabola() -> None:
    x = np.arange(7.0)
    bent = 0.1 + 0.2 * x - 0.01 * x**2
    assert spread(tuple(zip(x, bent, strict=True))) == pytest.approx(0.0, abs=1e-12)
    wave = bent + 0.05 * (-1.0) ** x
    residuals = wave - np.polyval(np.polyfit(x, wave, 2), x)
    expected = float(np.sqrt(np.sum(residuals**2) / 4))
    assert spread(tuple(zip(x, wave, strict=True))) == pytest.approx(expected)
    assert spread(tuple(zip(x[:4], wave[:4], strict=True))) is None


def test_a_run_without_evaluations_has_no_held_out_measures(make_rows: MakeRows) -> None:
    found = measure(make_rows("4/4", 0, heldout=(None,) * 5))
    assert (found.heldout_auc, found.heldout_last, found.oscillation) == (None, None, None)
    assert found.heldout_curve == ()
