"""`swarmd swarm local`: several real nodes on this machine, shown together. What `make swarm` runs."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from swarmd.cli.options import ConfigOption, SetOption
from swarmd.config_sources import load_config
from swarmd.errors import ConfigError, SwarmdError
from swarmd.monitor.local_swarm import LocalSwarm, NodeView, Plan, next_run_folder
from swarmd.monitor.local_swarm_screen import final_notes, final_table, render_swarm, swarm_line
from swarmd.monitor.plot import plot_in_subprocess

__all__ = ["local"]

LINE_SECONDS = 10.0
"""Pause between two lines where there is no terminal."""
_NO_TERMINAL_WIDTH = 2000


def local(
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", min=1, max=64, help="Number of nodes.")] = 3,
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", min=0, help="Rounds of each. 0: until Ctrl-C.")
    ] = 100,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Varies tasks and sampling.")] = 0,
    home: Annotated[
        Path, typer.Option("--home", metavar="DIR", help="Each run gets a folder of its own in it.")
    ] = Path("swarm"),
    model: Annotated[str, typer.Option("--model", metavar="NAME|PATH", help="Model of all nodes.")] = "tiny",
    config: ConfigOption = None,
    settings: SetOption = None,
) -> None:
    """Run a swarm of real nodes on this machine, and say what they learned from each other."""
    if config is not None:
        load_config(config_file=config, assignments=settings or ())
    folder = next_run_folder(home.expanduser().absolute())
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"--home {home} cannot be used ({error.strerror}): choose another") from error
    swarm = LocalSwarm(
        Plan(folder, nodes, rounds, seed, model, tuple(settings or ()), config.absolute() if config else None)
    )
    console = Console()
    ended = _run_on_screen(swarm, console) if console.is_terminal else _run_in_lines(swarm)
    with console.status("drawing the plot"):
        plot = _plot(swarm)
    if not console.is_terminal:
        # A file has no width: nothing is cut or folded to that of a terminal that is not there.
        console = Console(width=_NO_TERMINAL_WIDTH)
    console.print(final_table(ended, swarm.rounds(), console.width))
    print("\n".join(final_notes(ended, plot, folder)))
    failed = [
        node.name for node in ended if node.has_failed and not (swarm.stopping and node.exit_code == -9)
    ]
    if failed:
        raise SwarmdError(f"{', '.join(failed)} failed: see the logs in {folder}")


def _run_on_screen(swarm: LocalSwarm, console: Console) -> tuple[NodeView, ...]:
    with Live(console=console, screen=True, auto_refresh=False) as live:

        def show(nodes: Sequence[NodeView]) -> None:
            width, height = console.size
            seconds = time.monotonic() - swarm.started_at
            live.update(
                render_swarm(
                    nodes, seconds, swarm.plan.folder, stopping=swarm.stopping, width=width, height=height
                ),
                refresh=True,
            )

        return swarm.run(show)


def _run_in_lines(swarm: LocalSwarm) -> tuple[NodeView, ...]:
    said_at = -LINE_SECONDS

    def say(nodes: Sequence[NodeView]) -> None:
        nonlocal said_at
        seconds = time.monotonic() - swarm.started_at
        if seconds - said_at >= LINE_SECONDS or all(node.exit_code is not None for node in nodes):
            said_at = seconds
            print(swarm_line(nodes, seconds), flush=True)

    return swarm.run(say)


def _plot(swarm: LocalSwarm) -> Path | None:
    try:
        asyncio.run(plot_in_subprocess(swarm.histories(), swarm.plot))
    except SwarmdError as error:
        print(f"swarmd: {error}", file=sys.stderr)
        return None
    return swarm.plot
