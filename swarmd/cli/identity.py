"""`swarmd identity`: the key that a node is known by."""

from __future__ import annotations

import msgspec
import typer

from swarmd.cli.options import HomeOption, JsonOption, chosen_home
from swarmd.identity import Identity
from swarmd.paths import Home

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)


@app.command()
def show(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Print the peer id of the node in this home."""
    chosen = chosen_home(home)
    _print(Identity.load(chosen.identity_key), chosen, as_json)


@app.command()
def new(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Make an identity. An existing one is never overwritten."""
    chosen = chosen_home(home)
    chosen.prepare()
    _print(Identity.create(chosen.identity_key), chosen, as_json)


def _print(identity: Identity, home: Home, as_json: bool) -> None:
    if as_json:
        document = {
            "peer_id": identity.peer_id,
            "public_key": identity.public_key.hex(),
            "file": str(home.identity_key),
        }
        typer.echo(msgspec.json.encode(document).decode())
        return
    typer.echo(f"{identity.peer_id}  ({home.identity_key})")
