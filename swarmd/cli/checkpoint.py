"""`swarmd checkpoint`: has a running node save where it stands, and returns when that is on disk."""

from __future__ import annotations

from typing import Annotated

import typer

from swarmd.cli.options import HomeOption, chosen_home
from swarmd.errors import SwarmdError
from swarmd.monitor.control import request_checkpoint

__all__ = ["checkpoint"]


def checkpoint(
    home: HomeOption = None,
    timeout_seconds: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.0, help="How long to wait for it.")
    ] = 150.0,
) -> None:
    """Have a running node save a checkpoint now. Training goes on."""
    chosen = chosen_home(home)
    if chosen.running_pid() is None:
        raise SwarmdError(f"no node runs in {chosen.folder}: what it saved last is what there is")
    typer.echo(request_checkpoint(chosen.control_socket, timeout_seconds).path)
