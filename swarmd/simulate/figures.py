"""Plots of a report: the paper's two, smoothed own reward and totals, and the held-out curves. Each arm is
at its best learning rate; bands and bars are 95 % bootstrap intervals over seeds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from swarmd.simulate.comparison import PRIMARY, SECONDARY, Measure, Runs
from swarmd.simulate.measures import Curve, RunMeasures
from swarmd.simulate.statistics import Estimate, estimate

__all__ = ["draw"]

COLOURS = ("#495057", "#0b7285", "#d9480f", "#5f3dc4", "#2b8a3e", "#c2255c", "#e67700", "#1864ab")
SMOOTHED_PART = 0.1
"""Of the rounds: the span of the moving mean, which is for looking at only."""


def draw(runs: Runs, folder: Path, measures: Sequence[Measure]) -> tuple[Path, ...]:
    """Draw what `measures` are of into `folder`, which exists. Returns the paths. Raises OSError."""
    arms = {arm: list(runs.of(arm, runs.best_rate(arm)).values()) for arm in runs.arms}
    plots = []
    if SECONDARY in measures:
        own = _curves(
            arms, lambda run: _smooth(run.own_curve), "own reward, moving mean", folder / "own-reward.png"
        )
        plots += [own, _totals(runs, SECONDARY, folder / "totals.png")]
    if PRIMARY in measures:
        held_out = folder / "held-out.png"
        plots += [
            _curves(arms, lambda run: run.heldout_curve, "held-out reward", held_out, marker="o"),
            _totals(runs, PRIMARY, folder / "held-out-means.png"),
        ]
    return tuple(plots)


def _curves(
    arms: dict[str, list[RunMeasures]],
    curve_of: Callable[[RunMeasures], Curve],
    label: str,
    path: Path,
    marker: str = "",
) -> Path:
    """A curve for each arm with a band."""
    figure, axes = _figure(9, 5)
    for number, (arm, of_seed) in enumerate(arms.items()):
        points = _over_seeds(curve_of(run) for run in of_seed)
        if not points:
            continue
        rounds = list(points)
        colour = COLOURS[number % len(COLOURS)]
        style = "-" if number < len(COLOURS) else "--"
        middle = [points[x].value for x in rounds]
        axes.plot(
            rounds, middle, style, color=colour, marker=marker, markersize=4, linewidth=1.8,
            label=f"{arm} ({_seeds(len(of_seed))})",
        )  # fmt: skip
        axes.fill_between(
            rounds,
            [points[x].low for x in rounds],
            [points[x].high for x in rounds],
            color=colour,
            alpha=0.12,
        )
    axes.set_xlabel("round")
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize="small")
    return _save(figure, path)


def _totals(runs: Runs, measure: Measure, path: Path) -> Path:
    """A bar for each arm with its interval, and a point for each seed."""
    figure, axes = _figure(max(6.0, 1.1 * len(runs.arms)), 5)
    for number, arm in enumerate(runs.arms):
        values = list(runs.values(arm, runs.best_rate(arm, measure.value), measure.value).values())
        if not values:
            continue
        found = estimate(values)
        colour = COLOURS[number % len(COLOURS)]
        axes.bar(number, found.value, color=colour, alpha=0.75, width=0.7)
        if found.seeds > 1:
            axes.vlines(number, found.low, found.high, color="black", linewidth=1.5)
        axes.plot([number] * len(values), values, "o", color="black", alpha=0.45, markersize=3.5)
    axes.set_xticks(range(len(runs.arms)), runs.arms, rotation=30, ha="right", fontsize="small")
    axes.set_ylabel(measure.name)
    return _save(figure, path)


def _over_seeds(curves: Iterable[Curve]) -> dict[float, Estimate]:
    """At each round that all seeds have."""
    found: defaultdict[float, list[float]] = defaultdict(list)
    seeds = 0
    for curve in curves:
        seeds += 1
        for x, y in curve:
            found[x].append(y)
    return {x: estimate(found[x]) for x in sorted(found) if len(found[x]) == seeds}


def _smooth(curve: Curve) -> Curve:
    """Mean of each value and those before it, over a part of all rounds."""
    if not curve:
        return ()
    span = max(1, round(SMOOTHED_PART * len(curve)))
    values = np.array([y for _, y in curve])
    return tuple(
        (x, float(values[max(0, end - span) : end].mean())) for end, (x, _) in enumerate(curve, start=1)
    )


def _figure(width: float, height: float) -> tuple[Figure, mpl.axes.Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save(figure: Figure, path: Path) -> Path:
    # The time of drawing would make equal plots differ.
    figure.savefig(path, dpi=110, metadata={"Software": None})
    return path


def _seeds(count: int) -> str:
    return f"{count} seed{'s' if count != 1 else ''}"
