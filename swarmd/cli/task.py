"""`swarmd task`: look at one task, and at what the node's own sandboxed scorer makes of a completion."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import msgspec
import typer

from swarmd.cli.columns import printable_text
from swarmd.cli.options import JsonOption
from swarmd.errors import ConfigError, SwarmdError, WorkerError
from swarmd.rewards.messages import (
    INITIALISE,
    SHOW,
    ScoreReply,
    ShowReply,
    ShowRequest,
    VerifierSettings,
)
from swarmd.rewards.verifier import Call, VerifierPool
from swarmd.tasks.datasets import check_dataset_name, nearest
from swarmd.tasks.manifest import MAX_SEED, REASONING_GYM_VERSION, Manifest, task_digest
from swarmd.types import TaskReference, TaskSpec
from swarmd.workers.supervisor import Worker, WorkerLimits

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)

_TIMEOUT_SECONDS = 10.0
_MEMORY_BYTES = 2_000_000_000

_Reply = TypeVar("_Reply")

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
    reference = TaskReference(spec.dataset, spec.digest, seed, index)
    settings = VerifierSettings((spec,), False, _TIMEOUT_SECONDS, _MEMORY_BYTES)
    task = asyncio.run(_with_verifier(settings, lambda call: _show(call, reference)))
    if task.question is None:
        raise SwarmdError(f"task {dataset} with this seed and index cannot be generated: {task.reason}")
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
    typer.echo(printable_text(task.question))
    typer.echo(f"\nanswer: {printable_text(task.answer or '(none is given)')}")


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
    ] = _TIMEOUT_SECONDS,
    memory_bytes: Annotated[
        int, typer.Option("--memory", metavar="BYTES", min=10_000_000, help="Memory for scoring.")
    ] = _MEMORY_BYTES,
    as_json: JsonOption = False,
) -> None:
    """Score a completion of one task, in the sandbox that a node scores its peers' completions in."""
    spec = _chosen_task(dataset, swarm)
    text = _standard_input() if completion == "-" else completion
    settings = VerifierSettings((spec,), strict, timeout_seconds, memory_bytes)
    reference = TaskReference(spec.dataset, spec.digest, seed, index)
    reply = asyncio.run(_with_verifier(settings, lambda call: _score(call, settings, reference, text)))
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


async def _show(call: Call, reference: TaskReference) -> ShowReply:
    return await call(SHOW, ShowRequest(reference), 2 * _TIMEOUT_SECONDS + 5)


async def _score(
    call: Call, settings: VerifierSettings, reference: TaskReference, completion: str
) -> ScoreReply:
    pool = VerifierPool([call], settings.timeout_seconds)
    reply = await pool.score(reference, [completion])
    if pool.failures:
        raise WorkerError("the verifier stopped")
    return reply


async def _with_verifier(settings: VerifierSettings, ask: Callable[[Call], Awaitable[_Reply]]) -> _Reply:
    """What one verifier answers, which is started for it and closed to the machine."""

    async def initialise(worker: Worker) -> None:
        ready = await worker.call(INITIALISE, settings, timeout_seconds=60.0)
        for layer in ready.missing_layers:
            typer.echo(f"swarmd: warning: sandbox layer not available: {layer}", err=True)

    limits = WorkerLimits(start_timeout_seconds=60.0, max_fast_failures=2)
    verifier = Worker("verifier", "swarmd.entrypoints.verifier", limits, initialise, is_trusted=False)
    running = asyncio.create_task(verifier.run())
    try:
        return await ask(verifier.call)
    except WorkerError:
        # Why it stopped says more than that it did.
        if running.done():
            await running
        raise
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
