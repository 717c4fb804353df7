"""`swarmd model`: which models there are, fetching one, and making the bundled ones."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarmd.cli.columns import columns
from swarmd.cli.failures import say
from swarmd.cli.planning import workload_of
from swarmd.cli.progress import DownloadProgress, StepProgress
from swarmd.config import Config
from swarmd.errors import ConfigError
from swarmd.models.catalogue import CATALOGUE, KnownModel
from swarmd.models.fit import gigabytes, leanest
from swarmd.models.folder_check import check_folder
from swarmd.models.memory import HOST, Workload, estimate_memory
from swarmd.models.placement import Wish, place
from swarmd.models.probe import probe_machine
from swarmd.models.resolve import cached_folder, resolve
from swarmd.models.shape import read_shape
from swarmd.tasks.datasets import nearest
from swarmd.tasks.manifest import Manifest

if TYPE_CHECKING:
    from swarmd.models.corpus import Example

app = typer.Typer(help="List models; make the bundled ones.", no_args_is_help=True)

_LEVELS = ("tiny", "tiny-weak")
_MANIFEST = "tiny"
# Training questions start far above the seeds that manifests keep for evaluation.
_FIRST_SEED = 1 << 40
_SEEDS = 1 << 60


@app.command("list")
def list_models(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """Show the models known by name, and which of them are on this machine."""
    rows = [
        {
            "name": model.name,
            "parameters": model.parameters,
            "where": _where(model),
            "manifest": model.manifest,
            "hub_id": model.hub_id,
            "memory_bytes": _memory(model),
            "least_memory_bytes": _memory(model, leanest),
            "description": model.description,
        }
        for model in CATALOGUE.values()
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    lines = [("name", "size", "memory", "at least", "where", "")]
    for model in CATALOGUE.values():
        sizes = (gigabytes(_memory(model)), gigabytes(_memory(model, leanest)))
        lines.append((model.name, model.parameters, *sizes, _where(model), model.description))
    typer.echo(columns(lines))
    typer.echo(
        "Memory: of a node on this CPU with default settings, and with the leanest (LoRA, gradient "
        "checkpointing, tokens_at_once=1024). `start` compares what yours would take with what is free."
    )
    typer.echo("Any folder with safetensors weights and any hub id (OWNER/NAME) can be used as well.")


@app.command("fetch")
def fetch(name: Annotated[str, typer.Argument(help="A known name or a hub id.")]) -> None:
    """Download a model, check every file of it, and print its folder.

    What is on this machine is checked against its hashes, and only what is missing or damaged is fetched.
    """
    known = CATALOGUE.get(name)
    hub_id = name if known is None else known.hub_id
    if hub_id is not None and not Path(name).is_dir() and (folder := cached_folder(hub_id)) is not None:
        from swarmd.models.hub import drop_damaged

        for file in drop_damaged(folder):
            say(f"{file} on this machine is damaged: it is fetched anew")
    with DownloadProgress() as progress:
        found = resolve(name, progress.show)
    check_folder(found.path)
    typer.echo(found.path)


@app.command("warm-start")
def make(
    level: Annotated[str, typer.Option(help="Which bundled model: tiny or tiny-weak.")] = "tiny",
    out: Annotated[Path | None, typer.Option(help="Folder to write. Default: the level's name.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Varies the questions and the first weights.")] = 0,
    right: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Share of right answers among those it last learns from; the rest are refusals. More make a "
            "stronger start. Default: the level's.",
            show_default=False,
        ),
    ] = None,
    tasks: Annotated[
        str,
        typer.Option(
            metavar="TASK,...",
            help="Make a specialist, which knows these tasks and refuses the others. Default: all.",
            show_default=False,
        ),
    ] = "",
    overwrite: Annotated[bool, typer.Option(help="Replace the model that is in the folder.")] = False,
) -> None:
    """Make a bundled model, or one like it, from nothing: its tokenizer, then its weights.

    Takes minutes on one core.
    """
    if level not in _LEVELS:
        raise ConfigError(f"--level must be one of {', '.join(_LEVELS)}, got {level!r}")
    known = _tasks_of(tasks)
    folder = Path(level) if out is None else out
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--out {folder} is not a folder")
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise ConfigError(f"--out {folder} is not empty: name another folder, or add --overwrite")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {folder} cannot be made: {error.strerror}") from error
    # Imported here: torch takes seconds, which a wrong flag need not wait for.
    from swarmd.models.folder import save_model_folder
    from swarmd.models.levels import LEVELS, warm_start

    recipe = replace(LEVELS[level], tasks=known)
    if right is not None:
        recipe = replace(recipe, mix=replace(recipe.mix, right=right))
    with StepProgress() as progress:
        model, tokenizer = warm_start(
            recipe,
            _examples(),
            seed,
            _MANIFEST,
            lambda phase, now: progress.show(phase, now.step, now.steps, f"loss {now.loss:.3f}"),
        )
    save_model_folder(folder, model, tokenizer)
    typer.echo(f"{level}: {model.num_parameters():,} parameters in {folder}")


def _memory(model: KnownModel, workload: Callable[[Workload], Workload] = lambda usual: usual) -> int:
    """What a node with this model takes on a CPU, all processes together; `workload` changes the default."""
    shape = model.shape or read_shape(resolve(model.name).path)
    assert shape is not None
    cpu = Wish("model.device", "cpu")
    placement = place(probe_machine(with_gpus=False), cpu, cpu, "auto", shape.parameters)
    usual = workload_of(Config(), Manifest.load(model.manifest), shape, placement)
    return estimate_memory(shape, placement, workload(usual)).at(HOST)


def _where(model: KnownModel) -> str:
    if model.hub_id is None:
        return "bundled"
    return "on disk" if cached_folder(model.hub_id) is not None else "hub"


def _tasks_of(text: str) -> frozenset[str]:
    """The tasks named. Raises ConfigError for one that there is not."""
    there = [spec.dataset for spec in Manifest.load(_MANIFEST).tasks]
    names = frozenset(filter(None, (name.strip() for name in text.split(","))))
    for name in sorted(names.difference(there)):
        raise ConfigError(f"--tasks: there is no task {name!r}{nearest(name, there)}: {', '.join(there)}")
    return names


def _examples() -> Callable[[int], Mapping[str, Iterator[Example]]]:
    """Endless examples of each task of the `tiny` manifest, outside its held-out range."""
    from swarmd.models.corpus import Example
    from swarmd.tasks.reasoning_gym import TaskLibrary
    from swarmd.types import TaskReference, TaskSpec

    tasks = Manifest.load(_MANIFEST).tasks
    library = TaskLibrary(tasks)

    def stream(spec: TaskSpec, seed: int) -> Iterator[Example]:
        first = _FIRST_SEED + random.Random(f"{seed}/{spec.dataset}").randrange(_SEEDS)
        for index in itertools.count():
            task = library.task(TaskReference(spec.dataset, spec.digest, first, index))
            if task is None or task.answer is None:
                raise ConfigError(f"task {spec.dataset} has no answers to learn from")
            yield Example(task.question, task.answer)

    return lambda seed: {spec.dataset: stream(spec, seed) for spec in tasks}
