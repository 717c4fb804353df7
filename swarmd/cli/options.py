"""Options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from swarmd.errors import ConfigError
from swarmd.paths import Home, locate_home

__all__ = ["ConfigOption", "HomeOption", "JsonOption", "SetOption", "chosen_home", "parse_rates"]


def _home_folder(text: str) -> Path:
    """The folder that --home names. An empty one is a variable that was not set, not this folder."""
    if not text:
        raise ConfigError("--home is empty: name a folder, or leave the flag out")
    return Path(text)


HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home",
        parser=_home_folder,
        metavar="DIR",
        help="Folder that holds all state of one node. Default: SWARMD_HOME, else the user's data folder.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="TOML file laid over the home's config.toml.", show_default=False
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="SECTION.KEY=VALUE", help="Set one key. May be given again.", show_default=False
    ),
]


def chosen_home(option: Path | None) -> Home:
    """The home that --home, SWARMD_HOME or the default names."""
    return locate_home(option, os.environ)


def parse_rates(text: str) -> tuple[float, ...]:
    """What --learning-rates says. Raises ConfigError."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"--learning-rates: expected numbers with commas, got {text!r}") from error
