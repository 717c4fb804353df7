"""`swarmd config`: which values are in force and where each came from, and whether they are right."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from swarmd.cli.options import ConfigOption, HomeOption, JsonOption, SetOption, chosen_home
from swarmd.config_sources import Setting, SourcedConfig, load_config

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)


@app.command()
def show(
    home: HomeOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print every key, its value and where the value came from."""
    rows = _loaded(home, config, settings).settings()
    if as_json:
        listed = [{"key": row.key, "value": row.value, "source": row.source} for row in rows]
        typer.echo(msgspec.json.format(msgspec.json.encode(listed)).decode())
        return
    console = Console()
    if console.is_terminal:
        console.print(_table(rows))
        return
    # Not a terminal: one line per key, never folded, for grep.
    for row in rows:
        typer.echo(f"{row.key} = {_toml_value(row.value)}  # {row.source}")


@app.command()
def check(home: HomeOption = None, config: ConfigOption = None, settings: SetOption = None) -> None:
    """Read all sources; exit 2 and name the first mistake if there is one."""
    loaded = _loaded(home, config, settings)
    typer.echo(f"configuration is right ({len(loaded.sources)} of {len(loaded.settings())} keys set)")


def _loaded(home: Path | None, config: Path | None, settings: Sequence[str] | None) -> SourcedConfig:
    environment: Mapping[str, str] = os.environ
    return load_config(chosen_home(home).config_file, environment, config, settings or ())


def _table(rows: Sequence[Setting]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    for title in ("key", "value", "source"):
        table.add_column(title, overflow="fold")
    section = ""
    for row in rows:
        if row.key.split(".")[0] != section and section:
            table.add_section()
        section = row.key.split(".")[0]
        style = "dim" if row.source == "default" else "bold"
        table.add_row(row.key, escape(_toml_value(row.value)), escape(row.source), style=style)
    return table


def _toml_value(value: object) -> str:
    """A value as a TOML file would hold it."""
    return msgspec.json.encode(value).decode()
