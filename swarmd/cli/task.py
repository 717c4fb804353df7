"""`swarmd task`: look at one task, and at what the node's own sandboxed scorer makes of a completion."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import msgspec
import typer

from swarmd.cli.options import JsonOption
from swarmd.errors import ConfigError, WorkerError
from swarmd.rewards.messages import INITIALISE, ScoreReply, VerifierSettings
from swarmd.rewards.verifier import VerifierPool
from swarmd.tasks.datasets import check_dataset_name, nearest
from swarmd.tasks.manifest import MAX_SEED, REASONING_GYM_VERSION, Manifest, task_digest
from swarmd.types import TaskReference, TaskSpec
from swarmd.workers.supervisor import Worker, WorkerLimits

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)

DatasetOption = Annotated[str, typer.Option("--dataset", metavar="NAME", help="reasoning-gym dataset.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, max=MAX_SEED, help="Seed of the task's stream.")]
IndexOption = Annotated[int, typer.Option("--index", min=0, max=2**40, help="Index within the stream.")]
SwarmOption = Annotated[
    str | None,
    typer.Option(
        "--swarm",
        metavar="FILE|NAME",
        help="Manifest whose configuration of the dataset is used. Default: the library's own.",
        show_default=False,
    ),
]


@app.command()
def show(
    dataset: DatasetOption,
    seed: SeedOption,
    index: IndexOption,
    swarm: SwarmOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the question and a right answer of one task."""
    spec = _chosen_task(dataset, swarm)
    # Takes a second, so only now that the options are known to be right.
    from swarmd.tasks.reasoning_gym import TaskLibrary

    library = TaskLibrary([spec])
    library.warm_up(0)
    task = library.task(TaskReference(spec.dataset, spec.digest, seed, index))
    assert task is not None
    if as_json:
        document = {
            "dataset": spec.dataset,
            "config_digest": spec.digest,
            "seed": seed,
            "index": index,
            "question": task.question,
            "answer": task.answer,
        }
        typer.echo(msgspec.json.encode(document).decode())
        return
    typer.echo(task.question)
    typer.echo(f"\nanswer: {task.answer}")


@app.command()
def score(
    dataset: DatasetOption,
    seed: SeedOption,
    index: IndexOption,
    completion: Annotated[
        str, typer.Option("--completion", metavar="TEXT|-", help="The completion; - reads standard input.")
    ] = "-",
    swarm: SwarmOption = None,
    strict: Annotated[bool, typer.Option("--strict", help="1 for a right answer, 0 for any other.")] = False,
    timeout_seconds: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.1, max=600, help="Wall time for scoring.")
    ] = 10.0,
    memory_bytes: Annotated[
        int, typer.Option("--memory", metavar="BYTES", min=10_000_000, help="Memory for scoring.")
    ] = 2_000_000_000,
    as_json: JsonOption = False,
) -> None:
    """Score a completion of one task, in the sandbox that a node scores its peers' completions in."""
    spec = _chosen_task(dataset, swarm)
    text = _standard_input() if completion == "-" else completion
    settings = VerifierSettings((spec,), strict, timeout_seconds, memory_bytes)
    reply = asyncio.run(_score(settings, TaskReference(spec.dataset, spec.digest, seed, index), text))
    reward, reason = reply.rewards_G[0], reply.reasons_G[0]
    if as_json:
        typer.echo(msgspec.json.encode({"score": reward, "reason": reason}).decode())
    else:
        typer.echo(f"{reward:g}" if reason is None else f"{reward:g} ({reason})")


def _chosen_task(dataset: str, swarm: str | None) -> TaskSpec:
    check_dataset_name("--dataset", dataset)
    if swarm is None:
        return TaskSpec(dataset, {}, 1.0, task_digest(dataset, {}, REASONING_GYM_VERSION))
    manifest = Manifest.load(swarm)
    for spec in manifest.tasks:
        if spec.dataset == dataset:
            return spec
    raise ConfigError(
        f"--dataset: swarm {manifest.name} has no task {dataset!r}{nearest(dataset, manifest.task_digests)}"
    )


def _standard_input() -> str:
    # Bytes that are not UTF-8 become replacement characters, as they would for a tokenizer.
    return sys.stdin.buffer.read().decode("utf-8", "replace")


async def _score(settings: VerifierSettings, reference: TaskReference, completion: str) -> ScoreReply:
    """Runs one verifier for one completion."""

    async def initialise(worker: Worker) -> None:
        ready = await worker.call(INITIALISE, settings, timeout_seconds=60.0)
        for layer in ready.missing_layers:
            typer.echo(f"swarmd: warning: sandbox layer not available: {layer}", err=True)

    limits = WorkerLimits(start_timeout_seconds=60.0, max_fast_failures=2)
    verifier = Worker("verifier", "swarmd.entrypoints.verifier", limits, initialise, is_trusted=False)
    running = asyncio.create_task(verifier.run())
    try:
        pool = VerifierPool([verifier.call], settings.timeout_seconds)
        reply = await pool.score(reference, [completion])
        if pool.failures and running.done():
            await running
            raise WorkerError("the verifier stopped")
        return reply
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
