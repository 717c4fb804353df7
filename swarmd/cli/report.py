"""`swarmd report`: tables and plots of simulated swarms, and of real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swarmd.cli.options import parse_rates
from swarmd.errors import SwarmdError
from swarmd.simulate.arms import parse_arms
from swarmd.simulate.report import chosen_rows, planned_pairs, read_sources, runs_of, write_report
from swarmd.simulate.rows import write_rows

__all__ = ["report"]


def report(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...", help="Folders of `swarmd simulate` or `swarmd swarm local`, or files with rows."
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Where to write the report.", show_default=False)
    ],
    baseline: Annotated[
        str,
        typer.Option(
            "--baseline",
            metavar="ARM",
            help="Compare all other arms with it. Default: 8/0, or the first.",
            show_default=False,
        ),
    ] = "",
    contrasts: Annotated[
        list[str] | None,
        typer.Option(
            "--contrast",
            metavar="'ARM vs BASE'",
            help="Compare these instead. May be given again.",
            show_default=False,
        ),
    ] = None,
    arms: Annotated[
        str,
        typer.Option("--arms", metavar="ARM,...", help="Only these. Default: all.", show_default=False),
    ] = "",
    learning_rates: Annotated[
        str,
        typer.Option(
            "--learning-rates", metavar="X,...", help="Only these. Default: all.", show_default=False
        ),
    ] = "",
    rows: Annotated[
        Path | None,
        typer.Option("--rows", metavar="FILE", help="Also write all rows into one file.", show_default=False),
    ] = None,
) -> None:
    """Compare the arms of simulated or real swarms: tables, plots, intervals and tests over seeds."""
    files = chosen_rows(
        read_sources(sources),
        [arm.name for arm in parse_arms(arms)] if arms else (),
        parse_rates(learning_rates) if learning_rates else (),
    )
    runs = runs_of(files)
    written = write_report(runs, planned_pairs(runs, baseline, contrasts or ()), out)
    if rows is not None:
        try:
            rows.parent.mkdir(parents=True, exist_ok=True)
            write_rows(rows, [row for file in files for row in file])
        except OSError as error:
            raise SwarmdError(f"{rows} cannot be written: {error.strerror or error}") from error
        written += (rows,)
    for path in written:
        typer.echo(path)
