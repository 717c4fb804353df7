"""Report. Reads the rows of simulated swarms and writes tables, plots and, when asked, all rows in one file,
from which the same report can be made again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from pyarrow import ArrowException

from swarmd.errors import ConfigError, SwarmdError
from swarmd.simulate.comparison import PRIMARY, SECONDARY, Measure, Runs, compare, parse_contrast
from swarmd.simulate.figures import draw
from swarmd.simulate.histories import history_rows, runs_with_histories
from swarmd.simulate.measures import measure
from swarmd.simulate.rows import Row, read_rows
from swarmd.simulate.tables import (
    Table,
    arms_table,
    contrasts_table,
    latex,
    markdown,
    rates_table,
    starts_table,
    tasks_table,
)

__all__ = ["chosen_rows", "page", "planned_pairs", "read_sources", "runs_of", "write_report"]

_PAPERS_BASELINE = "8/0"


def read_sources(sources: Sequence[Path]) -> list[list[Row]]:
    """The rows of each run or file of `sources`: folders that `swarmd simulate` or `swarmd swarm local` made,
    or files with rows.

    Raises ConfigError where there are none, SwarmdError for a file that cannot be read.
    """
    found = []
    for source in sources:
        if not source.exists():
            raise ConfigError(f"{source} does not exist: expected a folder of `swarmd simulate`, or its rows")
        if source.is_file():
            found.append(_read(source))
            continue
        simulated = [_read(file) for file in sorted((source / "runs").glob("*.parquet"))]
        real = [history_rows(seed, files) for seed, files in runs_with_histories(source).items()]
        if not simulated and not real:
            raise ConfigError(f"{source} has no finished run: there is nothing in {source / 'runs'}")
        found += simulated + real
    return found


def chosen_rows(
    files: Iterable[Sequence[Row]], arms: Collection[str] = (), rates: Collection[float] = ()
) -> list[list[Row]]:
    """The rows of these arms at these learning rates; of all where none is named. Files with no such row are
    left out. Raises ConfigError for an arm or a rate that there is not.
    """
    files = [list(rows) for rows in files]
    there = {(row.arm, row.learning_rate) for rows in files for row in rows}
    kept = {(arm, rate) for arm, rate in there if (not arms or arm in arms) and (not rates or rate in rates)}
    lacking = [f"arm {arm}" for arm in arms if arm not in {arm for arm, _ in kept}]
    lacking += [f"learning rate {rate:g}" for rate in rates if rate not in {rate for _, rate in kept}]
    if lacking:
        listed = ", ".join(f"{arm} at {rate:g}" for arm, rate in sorted(there))
        raise ConfigError(f"there is no run of {lacking[0]} among those asked for: there are {listed}")
    chosen = [[row for row in rows if (row.arm, row.learning_rate) in kept] for rows in files]
    return [rows for rows in chosen if rows]


def runs_of(files: Iterable[Sequence[Row]]) -> Runs:
    """The measures of all runs. Raises ConfigError for one that is in two files."""
    measured = []
    for rows in files:
        by_run: defaultdict[tuple[str, float, int], list[Row]] = defaultdict(list)
        for row in rows:
            by_run[row.arm, row.learning_rate, row.seed].append(row)
        for (arm, rate, seed), of_run in by_run.items():
            try:
                measured.append(measure(of_run))
            except ValueError as error:
                raise ConfigError(f"arm {arm} at {rate:g} with seed {seed}: {error}") from error
    return Runs(measured)


def planned_pairs(runs: Runs, baseline: str, contrasts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Which arms to compare: `contrasts` as ARM vs BASE, or all others with the baseline, which is 8/0 where
    there is one and else the first arm. Raises ConfigError for an arm that is not there.
    """
    pairs = [parse_contrast(text) for text in contrasts]
    if not pairs:
        base = baseline or (_PAPERS_BASELINE if _PAPERS_BASELINE in runs.arms else runs.arms[0])
        runs.rates(base)
        pairs = [(arm, base) for arm in runs.arms if arm != base]
    for name in {name for pair in pairs for name in pair}:
        runs.rates(name)
    return tuple(pairs)


def page(runs: Runs, pairs: Sequence[tuple[str, str]]) -> str:
    """The report in Markdown, without plots. Raises ConfigError for contrasts that cannot be made."""
    every = [run for arm in runs.arms for rate in runs.rates(arm) for run in runs.of(arm, rate).values()]
    rounds = sorted({int(run.own_curve[-1][0]) for run in every if run.own_curve})
    nodes = sorted({run.nodes for run in every})
    hours = sum(run.seconds for run in every) / 3600
    head = (
        f"# Arms compared\n\n{len(every)} swarms of {_range(nodes)} learning nodes, {_range(rounds)} rounds, "
        f"{hours:.1f} hours of computing.\n"
    )
    return "\n".join([head, *map(markdown, _tables(runs, pairs))])


def write_report(runs: Runs, pairs: Sequence[tuple[str, str]], folder: Path) -> tuple[Path, ...]:
    """Write `report.md`, `tables.tex` and the plots. Returns their paths.

    Raises ConfigError for contrasts that cannot be made, SwarmdError where nothing can be written.
    """
    text = page(runs, pairs)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        plots = draw(runs, folder, _measures(runs))
        pictures = "\n".join(f"![{plot.stem}]({plot.name})\n" for plot in plots)
        report, tex = folder / "report.md", folder / "tables.tex"
        report.write_text(f"{text}\n{pictures}", encoding="utf-8")
        tex.write_text("\n".join(map(latex, _tables(runs, pairs))), encoding="utf-8")
    except OSError as error:
        raise SwarmdError(f"{folder} cannot be written: {error.strerror or error}") from error
    return (report, tex, *plots)


def _tables(runs: Runs, pairs: Sequence[tuple[str, str]]) -> list[Table]:
    contrasts = [one for measured in _measures(runs) for one in compare(runs, pairs, measured)]
    tables = [arms_table(runs)]
    if contrasts:
        tables.append(contrasts_table(contrasts))
    if any(len(runs.rates(arm)) > 1 for arm in runs.arms):
        tables.append(rates_table(runs))
    tables.append(tasks_table(runs))
    by_start = starts_table(runs)
    return tables if by_start is None else [*tables, by_start]


def _measures(runs: Runs) -> tuple[Measure, ...]:
    """Those that there is something of."""
    has_heldout = any(runs.values(arm, rate, PRIMARY.value) for arm in runs.arms for rate in runs.rates(arm))
    return (PRIMARY, SECONDARY) if has_heldout else (SECONDARY,)


def _range(numbers: Sequence[int]) -> str:
    return f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def _read(path: Path) -> list[Row]:
    try:
        rows = read_rows(path)
    except (OSError, ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise SwarmdError(f"{path} cannot be read as rows of `swarmd simulate`: {reason}") from error
    if not rows:
        raise SwarmdError(f"{path} has no rows")
    return rows
