"""`swarmd peers`: whom a node has heard from, what it thinks of them, and the operator's word on one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from swarmd.cli.columns import columns, counts, span
from swarmd.cli.options import HomeOption, JsonOption, chosen_home
from swarmd.errors import HomeError, SwarmdError
from swarmd.gossip.reputation import Reputation, ReputationSettings, check_peer_id, judge
from swarmd.monitor.control import current_or_last_known, judge_peer
from swarmd.monitor.status import PeerStatus
from swarmd.paths import Home

__all__ = ["app", "describe"]

app = typer.Typer(invoke_without_command=True)

PeerArgument = Annotated[str, typer.Argument(metavar="PEER", help="The peer id, as `swarmd peers` shows it.")]


@app.callback()
def peers(context: typer.Context, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List the peers a node has heard from, or say what is to become of one."""
    if context.invoked_subcommand is not None:
        context.obj = home
        return
    known = current_or_last_known(chosen_home(home))
    found = known.peers if known else ()
    typer.echo(msgspec.json.encode(found).decode() if as_json else describe(found))


@app.command()
def ban(context: typer.Context, peer: PeerArgument, home: HomeOption = None) -> None:
    """Take nothing from a peer and keep no connection with it, until it is allowed or forgotten."""
    _judge(home or context.obj, peer, "ban")


@app.command()
def allow(context: typer.Context, peer: PeerArgument, home: HomeOption = None) -> None:
    """Trust a peer: its full share from the start, whatever it sends."""
    _judge(home or context.obj, peer, "allow")


@app.command()
def forget(context: typer.Context, peer: PeerArgument, home: HomeOption = None) -> None:
    """Take a word back, and forget what the peer did: it is a newcomer again."""
    _judge(home or context.obj, peer, "forget")


def describe(found: Sequence[PeerStatus]) -> str:
    """The peers as a table for a person, the most useful first."""
    if not found:
        return "no peers yet"
    header = (
        "peer",
        "name",
        "model",
        "round",
        "state",
        "score",
        "valid",
        "useful",
        "agrees",
        "accepted",
        "rejected",
        "screened",
        "last seen",
    )
    ordered = sorted(found, key=lambda peer: (-peer.accepted, peer.peer_id))
    return columns([header, *(_row(peer) for peer in ordered)])


def _row(peer: PeerStatus) -> tuple[str, ...]:
    shares = (peer.validity, peer.usefulness, peer.agreement)
    left = f" for {span(peer.seconds_left)}" if peer.seconds_left else ""
    return (
        peer.peer_id,
        peer.name,
        peer.model,
        "" if peer.round is None else str(peer.round),
        f"{peer.state}{left}",
        f"{peer.score:.1f}",
        *("" if share is None else f"{share:.0%}" for share in shares),
        str(peer.accepted),
        counts(peer.rejected) or "0",
        counts(peer.screened) or "0",
        "never" if peer.last_seen_seconds is None else f"{span(peer.last_seen_seconds)} ago",
    )


def _judge(home: Path | None, peer: str, word: str) -> None:
    check_peer_id(peer)
    chosen = chosen_home(home)
    if chosen.running_pid() is not None:
        judged = judge_peer(chosen.control_socket, peer, word).state
    else:
        judged = _judge_at_rest(chosen, peer, word)
    typer.echo(f"{peer} is {judged}")


def _judge_at_rest(home: Home, peer: str, word: str) -> str:
    """Write the word where the node reads it when it starts."""
    if not home.folder.is_dir():
        raise HomeError(
            f"home {home.folder} does not exist: start a node in it first, or name another --home"
        )
    home.prepare()
    with home.lock():
        reputation = Reputation(ReputationSettings(), lambda peer_id: None, time.time)
        problem = reputation.load(home.reputation_file)
        if problem is not None:
            raise SwarmdError(f"{problem}; remove the file to lose it")
        return judge(reputation, home.reputation_file, peer, word)
