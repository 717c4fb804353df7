"""`swarmd start`: run a node. All that can be wrong with flags, config, model and home is found here,
before the node and its heavy libraries are imported.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable
from typing import Annotated

import typer

from swarmd.cli.detach import detach
from swarmd.cli.failures import say
from swarmd.cli.options import ConfigOption, HomeOption, SetOption, chosen_home
from swarmd.cli.preflight import check_before_start
from swarmd.config import Config
from swarmd.config_sources import Flag, load_config
from swarmd.errors import ConfigError, SwarmdError
from swarmd.models.fit import gigabytes
from swarmd.models.placement import Placement
from swarmd.paths import Home

__all__ = ["start"]


def start(
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME|PATH", help="Known name (`swarmd model list`), folder, or hub id."),
    ] = None,
    home: HomeOption = None,
    isolated: Annotated[bool, typer.Option("--isolated", help="No network at all.")] = False,
    join: Annotated[
        list[str] | None,
        typer.Option(metavar="MULTIADDR", help="Bootstrap peer; ends in /p2p/PEERID. May be given again."),
    ] = None,
    swarm: Annotated[
        str | None, typer.Option(metavar="FILE|NAME", help="The swarm's manifest. Default: the model's.")
    ] = None,
    listen: Annotated[
        list[str] | None,
        typer.Option(metavar="MULTIADDR", help="Address to listen on. May be given again."),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(metavar="auto|vllm|transformers", help="What samples completions.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="auto|cpu|cuda[:N]", help="Where the model is computed.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(metavar="N", help="Stop after N rounds. 0: never.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Varies tasks and sampling.")] = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    detached: Annotated[
        bool, typer.Option("--detach", help="Run in the background; returns once the node is up.")
    ] = False,
    json_logs: Annotated[bool, typer.Option("--json-logs", help="Log as one JSON object per line.")] = False,
) -> None:
    """Run a node in the foreground. Needs no terminal and never prompts.

    Without --join and --isolated it listens and waits for peers, and trains meanwhile. SIGINT and
    SIGTERM save a checkpoint and stop it.
    """
    if isolated and join:
        raise ConfigError("--isolated and --join contradict each other: leave one out")
    flags = {
        "model.name": Flag("--model", model),
        "swarm.isolated": Flag("--isolated", isolated or None),
        "swarm.join": Flag("--join", tuple(join) if join else None),
        "swarm.manifest": Flag("--swarm", swarm),
        "swarm.listen": Flag("--listen", tuple(listen) if listen else None),
        "generation.engine": Flag("--engine", engine),
        "model.device": Flag("--device", device),
        "node.rounds": Flag("--rounds", rounds),
        "node.seed": Flag("--seed", seed),
        "node.json_logs": Flag("--json-logs", json_logs or None),
    }
    given = {key: flag for key, flag in flags.items() if flag.value is not None}
    chosen = chosen_home(home)

    def read() -> Config:
        return load_config(chosen.config_file, os.environ, config, settings or (), given).config

    first = read()
    placement = check_before_start(first, chosen)
    for name, place in (("generator", placement.generator), ("trainer", placement.trainer)):
        memory = f", about {gigabytes(place.needs_bytes)}" if place.needs_bytes else ""
        say(f"{name} on {place.device} in {place.dtype}{memory}: {place.why}")
    for warning in placement.warnings:
        say(warning)
    if detached:
        raise typer.Exit(detach(chosen, lambda: _run(first, chosen, placement, console=False, reread=read)))
    raise typer.Exit(_run(first, chosen, placement, console=True, reread=read))


def _run(
    config: Config, home: Home, placement: Placement, *, console: bool, reread: Callable[[], Config]
) -> int:
    if console:
        say("loading libraries")
    from swarmd.node import run_node

    try:
        return run_node(config, home, placement, console=console, reread=reread)
    except SwarmdError:
        raise
    except Exception as error:  # The last boundary: a bug is told in one line, too, and ends as a failure.
        _keep_traceback(home, error)
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        raise SwarmdError(
            f"the node stopped by a fault of its own ({what}); the traceback is in {home.log_file}"
        ) from error


def _keep_traceback(home: Home, error: Exception) -> None:
    with contextlib.suppress(OSError), home.log_file.open("a", encoding="utf-8") as file:
        traceback.print_exception(error, file=file)
