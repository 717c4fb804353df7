"""Totals of the runs that are done: one number for each run and measure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import msgspec
from pyarrow import ArrowException

from swarmd.errors import SwarmdError
from swarmd.simulate.experiment import Folder, Recorded
from swarmd.simulate.rows import Row, read_rows

__all__ = ["Results", "Totals", "heldout_auc", "own_reward_total"]

LEARNING = ("honest", "late")
"""Kinds of node that measures are about."""


def own_reward_total(rows: Iterable[Row]) -> float:
    """The paper's measure: own reward, unfiltered, summed over rounds; mean over the learning nodes."""
    totals: defaultdict[int, float] = defaultdict(float)
    for row in rows:
        if row.kind in LEARNING:
            totals[row.node] += row.own_reward or 0.0
    return fmean(totals.values())


def heldout_auc(rows: Iterable[Row]) -> float | None:
    """Area under the held-out curve over rounds, divided by its width, so that it is a mean reward; mean
    over the learning nodes. None where nothing was evaluated.
    """
    curves: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)
    for row in rows:
        if row.kind in LEARNING and row.heldout_reward is not None:
            curves[row.node].append((row.round, row.heldout_reward))
    return fmean(_mean_height(curve) for curve in curves.values()) if curves else None


class Totals(msgspec.Struct, frozen=True):
    """Of one run."""

    arm: str
    learning_rate: float
    seed: int
    own_reward_total: float
    heldout_auc: float | None
    seconds: float


class Results:
    """The runs of a folder that are done, and the summary of them. Each file is read once."""

    def __init__(self, folder: Folder, recorded: Recorded) -> None:
        self.folder = folder
        self._recorded = recorded
        self._totals: dict[str, Totals] = {}

    def __len__(self) -> int:
        return len(self._totals)

    def write(self) -> None:
        """Write the summary of all runs that are done by now."""
        for path in sorted(self.folder.runs.glob("*.parquet")):
            if path.name not in self._totals:
                self._totals[path.name] = _totals(path)
        self.folder.write_summary(self._document())

    def _document(self) -> dict[str, object]:
        """Where an arm was run at several learning rates, each is an arm of its own, `ARM@RATE`. Lists
        are in the order of `seeds`.
        """
        found = sorted(self._totals.values(), key=lambda run: (run.seed, run.arm, run.learning_rate))
        rates: defaultdict[str, set[float]] = defaultdict(set)
        for run in found:
            rates[run.arm].add(run.learning_rate)
        arms: dict[str, dict[str, list[float | None]]] = {}
        for run in found:
            name = run.arm if len(rates[run.arm]) == 1 else f"{run.arm}@{run.learning_rate:g}"
            measures = arms.setdefault(name, {"seeds": [], "own_reward_total": [], "heldout_auc": []})
            measures["seeds"].append(run.seed)
            measures["own_reward_total"].append(run.own_reward_total)
            measures["heldout_auc"].append(run.heldout_auc)
        seconds = sum(run.seconds for run in found)
        return {"arms": arms, "config": self._recorded, "seconds": seconds}


def _totals(path: Path) -> Totals:
    try:
        rows = read_rows(path)
    except (OSError, ArrowException) as error:
        raise SwarmdError(f"{path} cannot be read ({error}): remove it to have it made again") from error
    first = rows[0]
    return Totals(
        first.arm,
        first.learning_rate,
        first.seed,
        own_reward_total(rows),
        heldout_auc(rows),
        sum(row.wall_seconds for row in rows),
    )


def _mean_height(curve: list[tuple[int, float]]) -> float:
    """By trapezoids. A curve of one point has its height."""
    curve.sort()
    width = curve[-1][0] - curve[0][0]
    if not width:
        return curve[0][1]
    area = sum((right - left) * (low + high) / 2 for (left, low), (right, high) in pairwise(curve))
    return area / width
