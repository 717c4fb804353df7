"""`swarmd swarm`: the manifests that swarms agree on, as files; and, hidden, a swarm on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from swarmd.cli.local import local
from swarmd.cli.options import JsonOption
from swarmd.errors import ConfigError
from swarmd.tasks.manifest import Manifest, TaskEntry

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)
app.command(name="local", hidden=True)(local)

ManifestArgument = Annotated[
    str, typer.Argument(metavar="FILE|NAME", help="A TOML file, or a built-in name.", show_default=False)
]


@app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new swarm.", show_default=False)],
    like: Annotated[
        str, typer.Option("--like", metavar="FILE|NAME", help="Manifest to start from.")
    ] = "sapo-nine",
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            "--task",
            metavar="DATASET[=WEIGHT]",
            help="Dataset to have, instead of those of --like. May be given again.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="File to write; - prints. Default: NAME.toml.", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a manifest to edit and to hand to others. An existing file is never overwritten."""
    start = Manifest.load(like)
    entries = _entries(tasks, start) if tasks else start.entries
    manifest = Manifest.from_toml(msgspec.structs.replace(start, name=name, entries=entries).to_toml())
    if out == Path("-"):
        typer.echo(manifest.to_toml(), nl=False)
        return
    _write_and_tell(out or Path(f"{name}.toml"), manifest, as_json)


@app.command()
def fetch(
    swarm_id: Annotated[str, typer.Argument(metavar="ID", help="The whole swarm id.", show_default=False)],
    join: Annotated[
        list[str],
        typer.Option(
            metavar="MULTIADDR", help="A node of the swarm; ends in /p2p/PEERID. May be given again."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="File to write. Default: NAME.toml.", show_default=False),
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=1, help="How long to look.")] = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Get the manifest of a swarm from its nodes. It is written only if its digest is the id."""
    # It brings the network along, which the other commands here can do without.
    from swarmd.cli.fetch import fetch_manifest

    manifest = fetch_manifest(swarm_id, tuple(join), timeout)
    _write_and_tell(out or Path(f"{manifest.name}.toml"), manifest, as_json)


@app.command()
def show(
    manifest: Annotated[
        str | None,
        typer.Argument(metavar="[FILE|NAME]", help="Default: list the built-in ones.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print a manifest with every value written out, or list the built-in ones."""
    if manifest is not None:
        _show_one(Manifest.load(manifest), as_json)
        return
    built_in = [Manifest.load(name) for name in Manifest.built_in_names()]
    if as_json:
        listed = [{"name": m.name, "swarm_id": m.swarm_id, "tasks": len(m.tasks)} for m in built_in]
        typer.echo(msgspec.json.encode(listed).decode())
        return
    for m in built_in:
        typer.echo(f"{m.name}  {len(m.tasks)} tasks  {m.swarm_id}")


@app.command(name="id")
def show_id(manifest: ManifestArgument, as_json: JsonOption = False) -> None:
    """Print the swarm id: the digest that nodes of one swarm have in common."""
    loaded = Manifest.load(manifest)
    if as_json:
        document = {"name": loaded.name, "swarm_id": loaded.swarm_id}
        typer.echo(msgspec.json.encode(document).decode())
    else:
        typer.echo(loaded.swarm_id)


def _show_one(manifest: Manifest, as_json: bool) -> None:
    if as_json:
        document = {**msgspec.to_builtins(manifest), "swarm_id": manifest.swarm_id}
        document["tasks"] = [
            {**msgspec.to_builtins(entry), "config_digest": manifest.task_digests[entry.dataset]}
            for entry in manifest.entries
        ]
        typer.echo(msgspec.json.encode(document).decode())
        return
    typer.echo(f"# swarm id {manifest.swarm_id}")
    typer.echo(manifest.to_toml(), nl=False)


def _entries(tasks: list[str], start: Manifest) -> tuple[TaskEntry, ...]:
    """The datasets asked for, configured as in the manifest to start from where it has them."""
    known = {entry.dataset: entry for entry in start.entries}
    entries: list[TaskEntry] = []
    for text in tasks:
        dataset, _, weight = text.partition("=")
        entry = known.get(dataset, TaskEntry(dataset))
        try:
            entries.append(msgspec.structs.replace(entry, weight=float(weight)) if weight else entry)
        except ValueError as error:
            raise ConfigError(f"--task: expected DATASET or DATASET=WEIGHT, got {text!r}") from error
    return tuple(entries)


def _write_and_tell(path: Path, manifest: Manifest, as_json: bool) -> None:
    _write_new(path, manifest.to_toml())
    if as_json:
        document = {"file": str(path), "name": manifest.name, "swarm_id": manifest.swarm_id}
        typer.echo(msgspec.json.encode(document).decode())
    else:
        typer.echo(f"{path}: swarm {manifest.name}, id {manifest.swarm_id}")


def _write_new(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise ConfigError(f"{path} exists already; choose another --out") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
