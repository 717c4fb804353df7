"""What is left on the terminal when a node has ended: one small table, and where the plot is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from swarmd.monitor import words
from swarmd.monitor.history import RoundRecord, mean_own_reward
from swarmd.monitor.status import NodeStatus, PeerStatus

SPAN_ROUNDS = 10
"""Rounds at the beginning and at the end whose mean rewards are compared."""


def improvement(records: Sequence[RoundRecord]) -> tuple[float | None, float | None, float | None]:
    """Mean own reward of the first and of the last ten rounds, and last divided by first.

    With fewer than twenty rounds the spans would overlap: each is then half of the rounds. A ratio
    to nothing is None.
    """
    span = min(SPAN_ROUNDS, len(records) // 2)
    if span == 0:
        return (None, None, None)
    first, last = mean_own_reward(records[:span]), mean_own_reward(records[-span:])
    ratio = last / first if first and last is not None else None
    return (first, last, ratio)


def ratio_text(ratio: float | None) -> str:
    """`2.41 x`, a dash when there is none."""
    return "–" if ratio is None else f"{ratio:.2f} x"


def summary(
    records: Sequence[RoundRecord], status: NodeStatus, peers: Sequence[PeerStatus], plot: Path | None
) -> RenderableType:
    """The end of a run: rounds, reward at first and at last, groups from each peer."""
    first, last, ratio = improvement(records)
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    table.add_row("rounds", f"{status.round:,} in {words.duration(status.uptime_seconds)}")
    span = min(SPAN_ROUNDS, len(records) // 2)
    if span:
        table.add_row(
            "own reward",
            Text.assemble(
                f"{words.reward(first)} → {words.reward(last)}   ",
                (ratio_text(ratio), "bold"),
                (f"   first and last {words.many(span, 'round')}", "dim"),
            ),
        )
    if status.reward.eval is not None:
        table.add_row("held-out tasks", words.reward(status.reward.eval))
    if not status.is_isolated:
        share = f"{status.external_groups:,} of {status.trained_groups:,}"
        filled = f", {status.filled:,} filled with own" if status.filled else ""
        table.add_row("peers' groups", f"{share} groups learned from{filled}")
        for peer in sorted(peers, key=lambda peer: -peer.accepted)[:8]:
            name = words.printable(peer.name or words.short_peer_id(peer.peer_id), 20)
            table.add_row("", f"{words.many(peer.accepted, 'group')} from {name}")
    restarts = sum(worker.restarts for worker in status.workers.values())
    if restarts:
        table.add_row("workers", f"{words.many(restarts, 'restart')}")
    if plot is not None:
        table.add_row("plot", Text(str(plot), overflow="fold"))
    return Group(Text(""), table, Text(""))
