"""`swarmd stop`: asks a node to save and end, and returns when it has."""

from __future__ import annotations

import os
import signal
import time
from typing import Annotated

import typer

from swarmd.cli.options import HomeOption, chosen_home
from swarmd.errors import SwarmdError
from swarmd.monitor.control import ControlError, request_stop
from swarmd.paths import Home

__all__ = ["stop"]

_POLL_SECONDS = 0.05


def stop(
    home: HomeOption = None,
    timeout_seconds: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.0, help="How long to wait for its end.")
    ] = 180.0,
) -> None:
    """Stop a running node; it saves a checkpoint first."""
    chosen = chosen_home(home)
    running = chosen.running_pid()
    if running is None:
        typer.echo(f"no node runs in {chosen.folder}")
        return
    _ask_to_stop(chosen, running)
    deadline = time.monotonic() + timeout_seconds
    while chosen.running_pid() == running:
        if time.monotonic() > deadline:
            raise SwarmdError(
                f"the node (process id {running}) has not ended after {timeout_seconds:g} s: wait, or end it "
                f"with `kill -9 {running}`, which loses what came after its last checkpoint"
            )
        time.sleep(_POLL_SECONDS)
    typer.echo(f"stopped the node with process id {running}")


def _ask_to_stop(home: Home, process_id: int) -> None:
    try:
        request_stop(home.control_socket)
    except ControlError:
        # It is starting, or too busy to answer: the signal means the same.
        try:
            os.kill(process_id, signal.SIGTERM)
        except ProcessLookupError:
            return
        except PermissionError as error:
            raise SwarmdError(f"the node (process id {process_id}) belongs to another user") from error
