"""Totals of the runs that are done: one number for each run and measure."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import msgspec
from pyarrow import ArrowException

from swarmd.errors import SwarmdError
from swarmd.simulate.experiment import Folder, Recorded
from swarmd.simulate.measures import measure
from swarmd.simulate.rows import read_rows

__all__ = ["Results", "Totals"]


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
    found = measure(rows)
    return Totals(
        found.arm, found.learning_rate, found.seed, found.own_total, found.heldout_auc, found.seconds
    )
