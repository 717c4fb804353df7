"""Measures of one simulated swarm: what its rows come down to. Means are over the learning nodes, each
measured for itself first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from swarmd.simulate.rows import Row

__all__ = ["LEARNING", "Curve", "RunMeasures", "mean_height", "measure", "spread"]

LEARNING = ("honest", "late")
"""Kinds of node that measures are about."""
_TREND_DEGREE = 2
"""A learning curve bends, and that is no oscillation."""

Curve = tuple[tuple[float, float], ...]
"""Points (round, value), in the order of rounds."""


@dataclass(frozen=True)
class RunMeasures:
    """One swarm with its seed. None where nothing was measured."""

    arm: str
    learning_rate: float
    seed: int
    nodes: int
    """That learn."""
    heldout_auc: float | None
    """Area under the curve of held-out reward over rounds, divided by its width: a mean reward. Primary."""
    heldout_last: float | None
    """At the last evaluation."""
    own_total: float
    """Own reward, unfiltered, summed over rounds: the paper's measure."""
    oscillation: float | None
    """Standard deviation of the held-out curve around a parabola that fits it best, mean over nodes."""
    own_signal: float | None
    """Share of own groups whose rewards differ."""
    batch_signal: float | None
    """Share of the groups trained on whose rewards differ."""
    entropy: float | None
    """Nats a token, of own samples."""
    completion_tokens: float | None
    updates: float
    """Optimizer steps of a node."""
    own_groups: float | None
    """Own groups that a node sampled; None where it was not counted."""
    seconds: float
    """Of computing, all nodes."""
    heldout_auc_by_task: Mapping[str, float]
    heldout_by_start: Mapping[str, Mapping[str, tuple[float, float]]]
    """Model that nodes started from, and task, to held-out reward at the first and at the last evaluation."""
    own_mean_by_task: Mapping[str, float]
    """Own reward, mean over the rounds in which the task was met."""
    own_curve: Curve
    heldout_curve: Curve


def measure(rows: Sequence[Row]) -> RunMeasures:
    """The measures of all rows of one run. Raises ValueError where no node of it learns."""
    nodes: defaultdict[int, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.round):
        if row.kind in LEARNING:
            nodes[row.node].append(row)
    if not nodes:
        raise ValueError("there is no node that learns")
    first = rows[0]
    each = list(nodes.values())
    heldout = [_points(node, lambda row: row.heldout_reward) for node in each]
    measured = [curve for curve in heldout if curve]
    learning = [row for node in each for row in node]
    return RunMeasures(
        arm=first.arm,
        learning_rate=first.learning_rate,
        seed=first.seed,
        nodes=len(nodes),
        heldout_auc=_mean(mean_height(curve) for curve in measured),
        heldout_last=_mean(curve[-1][1] for curve in measured),
        own_total=fmean(sum(row.own_reward or 0.0 for row in node) for node in each),
        oscillation=_mean(spread(curve) for curve in measured),
        own_signal=_share(learning, lambda row: (row.own_groups_with_signal, row.groups_generated)),
        batch_signal=_share(
            learning,
            lambda row: (row.groups_with_signal, row.groups_own + row.groups_external),
        ),
        entropy=_mean(row.entropy for row in learning),
        completion_tokens=_mean(row.completion_tokens for row in learning),
        updates=fmean(node[-1].updates for node in each),
        own_groups=fmean(sum(row.groups_generated for row in node) for node in each) or None,
        seconds=sum(row.wall_seconds for row in rows),
        heldout_auc_by_task=_by_task(each, lambda row: row.heldout_by_task, mean_height),
        heldout_by_start=_by_start(each),
        own_mean_by_task=_by_task(
            each, lambda row: row.own_reward_by_task, lambda curve: fmean(value for _, value in curve)
        ),
        own_curve=_mean_curve(_points(node, lambda row: row.own_reward) for node in each),
        heldout_curve=_mean_curve(heldout),
    )


def mean_height(curve: Curve) -> float:
    """Area under a curve by trapezoids, divided by its width. A curve of one point has its height."""
    x, y = np.asarray(curve).T
    width = x[-1] - x[0]
    return float(np.trapezoid(y, x) / width) if width else float(y[0])


def spread(curve: Curve) -> float | None:
    """Standard deviation around the parabola that fits best, divided by the n - 3 degrees of freedom that it
    leaves. None for fewer than five points.
    """
    if len(curve) < _TREND_DEGREE + 3:
        return None
    x, y = np.asarray(curve).T
    residuals = y - np.polynomial.Polynomial.fit(x, y, _TREND_DEGREE)(x)
    return float(np.sqrt(np.sum(residuals**2) / (len(curve) - _TREND_DEGREE - 1)))


def _points(rows: Iterable[Row], value: Callable[[Row], float | None]) -> Curve:
    found = ((float(row.round), value(row)) for row in rows)
    return tuple((x, y) for x, y in found if y is not None)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _share(rows: Iterable[Row], counts: Callable[[Row], tuple[int, int]]) -> float | None:
    pairs = [counts(row) for row in rows]
    whole = sum(total for _, total in pairs)
    return sum(part for part, _ in pairs) / whole if whole else None


def _mean_curve(curves: Iterable[Curve]) -> Curve:
    """Over the nodes that have a point at a round."""
    points: defaultdict[float, list[float]] = defaultdict(list)
    for curve in curves:
        for x, y in curve:
            points[x].append(y)
    return tuple((x, fmean(points[x])) for x in sorted(points))


def _by_task(
    nodes: Iterable[Sequence[Row]],
    rewards: Callable[[Row], Mapping[str, float]],
    value: Callable[[Curve], float],
) -> dict[str, float]:
    """A value of each task's curve, mean over the nodes that met it."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for node in nodes:
        for task in sorted({task for row in node for task in rewards(row)}):
            points = tuple((float(row.round), rewards(row)[task]) for row in node if task in rewards(row))
            found[task].append(value(points))
    return {task: fmean(found[task]) for task in sorted(found)}


def _by_start(nodes: Iterable[Sequence[Row]]) -> dict[str, dict[str, tuple[float, float]]]:
    """First and last held-out reward, mean over the nodes of a start that met the task."""
    of_start: defaultdict[str, list[Sequence[Row]]] = defaultdict(list)
    for node in nodes:
        of_start[node[0].model].append(node)
    found = {}
    for start, alike in sorted(of_start.items()):
        first = _by_task(alike, lambda row: row.heldout_by_task, lambda curve: curve[0][1])
        last = _by_task(alike, lambda row: row.heldout_by_task, lambda curve: curve[-1][1])
        found[start] = {task: (first[task], last[task]) for task in first}
    return found
