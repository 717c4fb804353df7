"""Tables of a report: their cells, and how cells are written in Markdown and in LaTeX."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from swarmd.simulate.comparison import PRIMARY, SECONDARY, Contrast, Runs
from swarmd.simulate.measures import RunMeasures
from swarmd.simulate.statistics import Estimate, estimate, iqm

__all__ = [
    "Table",
    "arms_table",
    "contrasts_table",
    "latex",
    "markdown",
    "rates_table",
    "starts_table",
    "tasks_table",
]

NONE = "–"

Column = tuple[str, Callable[[Sequence[RunMeasures]], str]]


@dataclass(frozen=True)
class Table:
    """Cells as text, and what they are."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def arms_table(runs: Runs) -> Table:
    """All arms, each at its best rate by the primary measure."""
    return Table(
        "Arms, each at its best learning rate",
        (*_PLACE, *(header for header, _ in _COLUMNS)),
        tuple(_row(runs, arm, runs.best_rate(arm), _COLUMNS) for arm in runs.arms),
        "Interquartile means over seeds, with 95 % bootstrap intervals over seeds; a swarm is one value, the "
        "mean over its nodes. Best rate: by the first measure, on the same seeds. Oscillation: standard "
        "deviation of a node's held-out curve around its trend.",
    )


def rates_table(runs: Runs) -> Table:
    """Both measures of every arm at every rate."""
    columns = [column for column in _COLUMNS if column[0] in (PRIMARY.name, SECONDARY.name)]
    return Table(
        "Learning rates",
        (*_PLACE, *(header for header, _ in columns)),
        tuple(_row(runs, arm, rate, columns) for arm in runs.arms for rate in runs.rates(arm)),
    )


def contrasts_table(contrasts: Sequence[Contrast]) -> Table:
    """The planned contrasts."""
    rows = tuple(
        (
            contrast.arm,
            contrast.base,
            contrast.measure.name,
            f"{contrast.arm_rate:g}, {contrast.base_rate:g}",
            str(contrast.difference.seeds),
            _estimate(contrast.difference, 3, sign=True),
            NONE if contrast.gain is None else f"{contrast.gain:+.0%}",
            f"{contrast.test.p:.3g}",
            f"{contrast.holm_p:.3g}",
            f"{contrast.test.smallest_p:.3g}",
        )
        for contrast in contrasts
    )
    return Table(
        "Planned contrasts, best learning rate against best",
        (
            "arm",
            "against",
            "measure",
            "learning rates",
            "pairs",
            "difference",
            "gain",
            "p",
            "p (Holm)",
            "smallest p",
        ),
        rows,
        "Differences within seeds. p: two-sided paired sign-flip test; Holm: adjusted over the contrasts of "
        "a measure. Smallest p: what the test can give at least with so many pairs.",
    )


def tasks_table(runs: Runs) -> Table:
    """Both measures by task."""
    best = {arm: list(runs.of(arm, runs.best_rate(arm)).values()) for arm in runs.arms}
    tasks = sorted({task for of_seed in best.values() for run in of_seed for task in run.own_mean_by_task})
    rows = tuple(
        (
            task,
            *(
                f"{_plain([run.heldout_auc_by_task.get(task) for run in of_seed], 3)} / "
                f"{_plain([run.own_mean_by_task.get(task) for run in of_seed], 3)}"
                for of_seed in best.values()
            ),
        )
        for task in tasks
    )
    return Table(
        "By task: held-out reward / own reward, means over rounds",
        ("task", *best),
        rows,
        "Interquartile means.",
    )


def starts_table(runs: Runs) -> Table | None:
    """Held-out reward by what nodes started from. None where all started from the same."""
    best = {arm: list(runs.of(arm, runs.best_rate(arm)).values()) for arm in runs.arms}
    every = [run for of_seed in best.values() for run in of_seed]
    if all(len(run.heldout_by_start) < 2 for run in every):
        return None
    pairs = sorted(
        {(start, task) for run in every for start, of in run.heldout_by_start.items() for task in of}
    )
    rows = tuple(
        (
            start,
            task,
            _plain(_ends(every, start, task, 0), 3),
            *(_plain(_ends(of_seed, start, task, -1), 3) for of_seed in best.values()),
        )
        for start, task in pairs
    )
    return Table(
        "By start and task: held-out reward at the start, and at the last evaluation",
        ("start", "task", "at the start", *best),
        rows,
        "Interquartile means over seeds of the mean over the nodes with that start.",
    )


def markdown(table: Table) -> str:
    """As a section of a page."""
    lines = [f"### {table.title}", "", _line(table.header), _line(("---",) * len(table.header))]
    lines += map(_line, table.rows)
    return "\n".join([*lines, "", *([table.note, ""] if table.note else [])])


def latex(table: Table) -> str:
    """As a table of the package booktabs."""
    columns = "l" + "r" * (len(table.header) - 1)
    rows = [" & ".join(map(_escape, cells)) + r" \\" for cells in (table.header, *table.rows)]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_escape(' '.join(filter(None, (table.title + '.', table.note))))}}}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            rows[0],
            r"\midrule",
            *rows[1:],
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _ends(found: Sequence[RunMeasures], start: str, task: str, place: int) -> list[float]:
    """The first (0) or last (-1) held-out reward of the runs that have the start and the task."""
    ends = (run.heldout_by_start.get(start, {}).get(task) for run in found)
    return [pair[place] for pair in ends if pair is not None]


def _row(runs: Runs, arm: str, rate: float, columns: Iterable[Column]) -> tuple[str, ...]:
    of_seed = list(runs.of(arm, rate).values())
    return (arm, f"{rate:g}", str(len(of_seed)), *(cell(of_seed) for _, cell in columns))


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _escape(text: str) -> str:
    text = re.sub(r"([&%$#_{}])", r"\\\1", text)
    return text.replace("–", "--").replace("~", r"\textasciitilde{}")


_PLACE = ("arm", "learning rate", "seeds")
_COLUMNS: tuple[Column, ...] = (
    (PRIMARY.name, lambda of_seed: _interval([run.heldout_auc for run in of_seed], 3)),
    ("held-out reward, last", lambda of_seed: _plain([run.heldout_last for run in of_seed], 3)),
    (SECONDARY.name, lambda of_seed: _interval([run.own_total for run in of_seed], 2)),
    ("oscillation", lambda of_seed: _plain([run.oscillation for run in of_seed], 3)),
    ("own groups with signal", lambda of_seed: _percent([run.own_signal for run in of_seed])),
    ("trained groups with signal", lambda of_seed: _percent([run.batch_signal for run in of_seed])),
    ("entropy", lambda of_seed: _plain([run.entropy for run in of_seed], 2)),
    ("tokens an answer", lambda of_seed: _plain([run.completion_tokens for run in of_seed], 1)),
    ("updates", lambda of_seed: _plain([run.updates for run in of_seed], 0)),
    ("own groups", lambda of_seed: _plain([run.own_groups for run in of_seed], 0)),
)
"""What is told of an arm: the header, and the cell for its runs."""


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _plain(values: Sequence[float | None], digits: int) -> str:
    known = _known(values)
    return f"{iqm(known):.{digits}f}" if known else NONE


def _percent(values: Sequence[float | None]) -> str:
    known = _known(values)
    return f"{iqm(known):.0%}" if known else NONE


def _interval(values: Sequence[float | None], digits: int) -> str:
    known = _known(values)
    return _estimate(estimate(known), digits) if known else NONE


def _estimate(found: Estimate, digits: int, *, sign: bool = False) -> str:
    form = f"{'+' if sign else ''}.{digits}f"
    if math.isnan(found.low):
        return f"{found.value:{form}}"
    return f"{found.value:{form}} [{found.low:{form}}, {found.high:{form}}]"
