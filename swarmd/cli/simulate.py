"""`swarmd simulate`: the controlled experiment, with the rooms of the daemon and in virtual time."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path
from typing import Annotated

import typer

import swarmd
from swarmd.cli.failures import say
from swarmd.cli.options import SetOption, parse_rates
from swarmd.cli.simulate_progress import SimulationProgress
from swarmd.errors import ConfigError
from swarmd.models.catalogue import CATALOGUE
from swarmd.simulate.arms import parse_arms
from swarmd.simulate.experiment import Experiment, Folder
from swarmd.simulate.experiment_file import ExperimentFile, read_experiment_file
from swarmd.simulate.lanes import Progress, run_all
from swarmd.simulate.messages import Run, RunReply
from swarmd.simulate.plan import HeldOut, NetworkPlan, NodePlan, SwarmPlan
from swarmd.simulate.summary import Results

__all__ = ["simulate"]

_SEEDS = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")
_DELAY = re.compile(r"(\d+(?:\.\d+)?)(?:-(\d+(?:\.\d+)?))?")


def simulate(
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder of the results.", show_default=False)
    ],
    nodes: Annotated[
        int | None, typer.Option("--nodes", metavar="N", min=1, max=256, help="Nodes of a swarm. Default: 8.")
    ] = None,
    arms: Annotated[
        str | None,
        typer.Option(
            "--arms",
            metavar="I/J,...",
            help="Own and external groups of a batch. Default: 8/0,6/2,4/4,2/6. Options behind it: +redraw, "
            "+frozen, +lagN, +groups, +updates, :SECTION.KEY=VALUE; I+Jself replays own groups.",
        ),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", metavar="R", min=1, help="Rounds of a node. Default: 50.")
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option("--seeds", metavar="S", help="Number of seeds, from 0 on; or FIRST-LAST. Default: 1."),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME|PATH", help="Start of all nodes. Default: tiny.")
    ] = None,
    learning_rates: Annotated[
        str | None,
        typer.Option("--learning-rates", metavar="X,...", help="Every arm with each. Default: 3e-4."),
    ] = None,
    delay: Annotated[
        str | None,
        typer.Option("--delay", metavar="D", help="Rounds that a message takes, D or FROM-TO. Default: 0."),
    ] = None,
    loss: Annotated[
        float | None,
        typer.Option("--loss", metavar="P", min=0, max=0.99, help="Part of the messages lost. Default: 0."),
    ] = None,
    eval_every: Annotated[
        int | None,
        typer.Option("--eval-every", metavar="K", min=0, help="Rounds between evaluations. Default: 10."),
    ] = None,
    eval_tasks: Annotated[
        int | None,
        typer.Option("--eval-tasks", metavar="N", min=1, help="Held-out tasks of one. Default: 72."),
    ] = None,
    workers: Annotated[
        int, typer.Option("--workers", metavar="N", min=0, help="Swarms at a time. 0: one for each core.")
    ] = 0,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="TOML file of an experiment; flags win.",
            show_default=False,
        ),
    ] = None,
    settings: SetOption = None,
) -> None:
    """Simulate swarms that share more or less, and record what each node learns."""
    file = ExperimentFile() if config is None else read_experiment_file(config)
    network, held_out = file.network, file.held_out
    experiment = Experiment(
        swarm=SwarmPlan(
            nodes=file.node_plans() if nodes is None else (NodePlan(),) * nodes,
            rounds=rounds or file.rounds,
            seed=0,
            network=NetworkPlan(
                network.delay if delay is None else _delay(delay), network.loss if loss is None else loss
            ),
            held_out=HeldOut(
                held_out.every if eval_every is None else eval_every,
                eval_tasks or held_out.tasks,
                held_out.temperature,
            ),
        ),
        settings=(f"model.name={_model(model or file.model)}", *file.assignments(), *(settings or ())),
        arms=parse_arms(",".join(file.arms) if arms is None else arms),
        learning_rates=file.learning_rates if learning_rates is None else parse_rates(learning_rates),
        seeds=_seeds(file.seeds if seeds is None else seeds),
    )
    runs = experiment.runs()
    for run in runs:
        run.swarm.check()
    folder = Folder(out)
    with folder.lock():
        results = Results(folder, folder.record(experiment, swarmd.__version__))
        missing = [run for run in runs if not folder.is_done(run)]
        try:
            asyncio.run(_run(missing, results, workers or os.cpu_count() or 1))
        except asyncio.CancelledError:
            say("stopped; the same command goes on with what is missing")
            raise KeyboardInterrupt from None
        results.write()
    print(f"{folder.summary}: totals of {len(results)} runs")


async def _run(missing: list[Run], results: Results, workers: int) -> None:
    """Simulate what is missing. Raises CancelledError when asked to stop."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # As nohup has it.
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    progress = Progress(len(missing))
    with SimulationProgress(progress) as shown:

        def on_done(run: Run, reply: RunReply) -> None:
            results.write()
            shown.say_done(run.file.removesuffix(".parquet"), reply.seconds)

        showing = asyncio.create_task(shown.run())
        try:
            await run_all(missing, results.folder, workers, progress, on_done)
        finally:
            showing.cancel()


def _model(name: str) -> str:
    """A folder is recorded by its whole path, so that the same command means the same elsewhere."""
    path = Path(name).expanduser()
    return str(path.resolve()) if name not in CATALOGUE and path.is_dir() else name


def _seeds(text: str) -> tuple[int, ...]:
    found = _SEEDS.fullmatch(text)
    first, last = (
        (int(found[1]), int(found[2])) if found and found[2] else (0, int(found[1]) - 1 if found else -1)
    )
    if last < first:
        raise ConfigError(f"--seeds: expected a number of seeds or FIRST-LAST, got {text!r}")
    return tuple(range(first, last + 1))


def _delay(text: str) -> tuple[float, float]:
    found = _DELAY.fullmatch(text)
    low = float(found[1]) if found else -1.0
    high = float(found[2]) if found and found[2] else low
    if not 0 <= low <= high:
        raise ConfigError(f"--delay: expected a number of rounds, or FROM-TO, got {text!r}")
    return low, high
