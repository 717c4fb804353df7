"""`swarmd peers`: whom a node has heard from, and what it thought of what they sent."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import typer

from swarmd.cli.columns import columns, counts, span
from swarmd.cli.options import HomeOption, JsonOption, chosen_home
from swarmd.monitor.control import current_or_last_known
from swarmd.monitor.status import PeerStatus

__all__ = ["describe", "peers"]


def peers(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List the peers a node has heard from."""
    known = current_or_last_known(chosen_home(home))
    found = known.peers if known else ()
    typer.echo(msgspec.json.encode(found).decode() if as_json else describe(found))


def describe(found: Sequence[PeerStatus]) -> str:
    """The peers as a table for a person, the most useful first."""
    if not found:
        return "no peers yet"
    header = ("peer", "name", "model", "round", "accepted", "rejected", "last seen")
    ordered = sorted(found, key=lambda peer: (-peer.accepted, peer.peer_id))
    return columns([header, *(_row(peer) for peer in ordered)])


def _row(peer: PeerStatus) -> tuple[str, ...]:
    return (
        peer.peer_id,
        peer.name,
        peer.model,
        "" if peer.round is None else str(peer.round),
        str(peer.accepted),
        counts(peer.rejected) or "0",
        "never" if peer.last_seen_seconds is None else f"{span(peer.last_seen_seconds)} ago",
    )
