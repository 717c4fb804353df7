"""The live screen of a node. `render` turns a view into something to draw and touches nothing else;
`Screen` draws it twice a second from a thread of its own, so that a slow or stopped terminal holds up
nobody. Where there is no terminal, `round_line` says one line a round.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import set_cell_size
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from swarmd.monitor import words
from swarmd.monitor.history import RoundRecord
from swarmd.monitor.status import NodeStatus, PeerStatus, WorkerStatus

DRAW_SECONDS = 0.5
_CLOSE_SECONDS = 1.0
_LABEL_WIDTH = 15
_FIXED_LINES = 19
"""Lines of a full screen without chart, peers and problems."""
_ROOMY_LINES = 22
"""From this height on there are empty lines between the parts."""

STATE_STYLES = {"starting": "cyan", "training": "green", "waiting": "yellow", "stopping": "yellow"}


@dataclass(frozen=True)
class View:
    """What the screen shows."""

    status: NodeStatus
    peers: tuple[PeerStatus, ...] = ()
    footer: str = "Ctrl-C saves a checkpoint and stops."


class Screen:
    """Draws a node's view on a terminal while `run` runs."""

    def __init__(self, console: Console, view: Callable[[], View]) -> None:
        self._console = console
        self._view = view
        self._latest: View | None = None
        self._closing = threading.Event()

    async def run(self) -> None:
        """Draw until cancelled. The terminal then looks as it did before."""
        self._latest = self._view()
        thread = threading.Thread(target=self._draw, name="screen", daemon=True)
        thread.start()
        try:
            while True:
                await asyncio.sleep(DRAW_SECONDS)
                self._latest = self._view()
        finally:
            self._closing.set()
            # A terminal that takes no output (Ctrl-S) is left behind.
            await asyncio.to_thread(thread.join, _CLOSE_SECONDS)

    def _draw(self) -> None:
        with Live(console=self._console, screen=True, auto_refresh=False) as live:
            while not self._closing.is_set():
                if self._latest is not None:
                    width, height = self._console.size
                    live.update(render(self._latest, width, height), refresh=True)
                self._closing.wait(DRAW_SECONDS)


def round_line(record: RoundRecord, status: NodeStatus) -> str:
    """A round in one line."""
    of_all = f"/{status.rounds}" if status.rounds else ""
    parts = [
        f"round {record.round}{of_all}",
        f"own reward {words.reward(record.own_reward)}",
        f"groups {record.local_groups} own + {record.external_groups} from peers",
        f"{record.groups_with_signal} with signal",
        words.many(record.peers, "peer"),
        f"buffer {record.buffer_local}+{record.buffer_external}",
        f"step {record.step_seconds:.2f} s",
        f"{status.rounds_per_minute:.1f} rounds/min",
    ]
    if record.eval_reward is not None:
        parts.insert(2, f"held-out {words.reward(record.eval_reward)}")
    return ", ".join(parts)


def render(view: View, width: int, height: int) -> RenderableType:
    """The view for a terminal of `width` x `height` characters. Shows less where there is less room."""
    status = view.status
    inner = max(20, min(width, 140) - 4)
    gap = [Text("")] if height >= _ROOMY_LINES else []
    problems = _problems(status.problems, inner, 3 if height >= 30 else 1)
    problem_lines = sum(1 + len(problem) // inner for problem in problems)
    room = height - (_FIXED_LINES if gap else _FIXED_LINES - 6) - problem_lines
    peer_lines = min(len(view.peers), max(1, room - 3))
    chart_lines = max(1, min(8, room - peer_lines))
    body: list[RenderableType] = [
        *gap,
        *_heading(status, inner),
        *gap,
        _progress(status, inner),
        *gap,
        *_reward(status, inner, chart_lines),
        *gap,
        *_peers(view, inner, peer_lines),
        *gap,
        _figures(status, inner),
        *gap,
        *problems,
        _line(Text(words.printable(_now(status), inner), style="dim")),
        _line(Text(words.printable(view.footer, inner), style="dim")),
    ]
    padded = Table.grid(padding=0)
    padded.add_column(width=2)
    padded.add_column(width=inner)
    padded.add_row("", Group(*body))
    return padded


def _heading(status: NodeStatus, inner: int) -> list[RenderableType]:
    left = Text.assemble(
        ("swarmd  ", "bold"), words.printable(status.name or words.short_peer_id(status.peer_id), 24)
    )
    right = Text.assemble(("● ", STATE_STYLES.get(status.state, "dim")), status.state)
    first = _ends(left, right, inner)
    swarm = "alone, no network" if status.is_isolated else f"swarm {status.swarm} {status.swarm_id[:8]}"
    about = f"model {status.model} · {swarm} · peer {words.short_peer_id(status.peer_id)}"
    second = _ends(
        Text(words.printable(about, inner - 14), style="dim"),
        Text(words.duration(status.uptime_seconds), style="dim"),
        inner,
    )
    return [first, second]


def _progress(status: NodeStatus, inner: int) -> RenderableType:
    left = Text.assemble(_label("round"), (f"{status.round:,}", "bold"))
    if status.rounds:
        left.append(f" of {status.rounds:,}", style="dim")
        bar_width = min(60, max(10, inner - _LABEL_WIDTH - 38))
        left.append("  " + words.bar(status.round / status.rounds, bar_width), style="cyan")
    return _ends(left, Text(f"policy version {status.policy_version}", style="dim"), inner)


def _reward(status: NodeStatus, inner: int, lines: int) -> list[RenderableType]:
    recent = status.reward.recent
    head = Text.assemble(_label("own reward"), (words.reward(status.reward.local_mean), "bold"))
    if len(recent) >= 20:
        first, last = sum(recent[:10]) / 10, sum(recent[-10:]) / 10
        head.append(f"   {words.reward(first)} → {words.reward(last)} over {len(recent)} rounds", style="dim")
    side = Text(f"highest {words.reward(max(recent))}" if recent else "", style="dim")
    chart = words.sparkline(recent, inner - _LABEL_WIDTH, lines)
    drawn = [Text.assemble(_label(""), (line, "cyan")) for line in chart]
    if not recent:
        drawn = [Text.assemble(_label(""), ("no round finished yet", "dim"))]
    others = Text.assemble(_label(""), ("held-out tasks ", "dim"), words.reward(status.reward.eval))
    if not status.is_isolated:
        others.append("   peers' groups ", style="dim").append(words.reward(status.reward.external_mean))
    return [_ends(head, side, inner), *map(_line, (*drawn, others))]


def _peers(view: View, inner: int, lines: int) -> list[RenderableType]:
    status = view.status
    head = Text.assemble(_label("peers"), (str(status.peers), "bold"), (" connected", "dim"))
    unreachable = [entry for entry in status.bootstrap if not entry.is_reachable]
    if unreachable and not status.peers:
        head.append(", retrying", style="yellow")
    if status.is_isolated:
        head = Text.assemble(_label("peers"), ("none, this node is isolated", "dim"))
    elif not view.peers and not unreachable:
        head.append(", listening", style="dim")
    hidden = len(view.peers) - lines
    if hidden > 0:
        head.append(f", {hidden} more not shown", style="dim")
    known = sorted(view.peers, key=lambda peer: -peer.accepted)[:lines]
    return [_line(head), *(_line(_peer(peer, 11 if inner < 90 else 20)) for peer in known)]


def _peer(peer: PeerStatus, width: int) -> Text:
    def cell(text: str, cells: int) -> str:
        return set_cell_size(words.printable(text, cells), cells) + "  "

    return Text.assemble(
        _label(""),
        cell(peer.name or words.short_peer_id(peer.peer_id), width),
        (cell(peer.model, width - 2), "dim"),
        (cell("" if peer.round is None else f"round {peer.round}", 10), "dim"),
        cell(f"{words.many(peer.accepted, 'group'):>12}", 12),
        (f"{sum(peer.rejected.values()):,} refused" if peer.rejected else "", "dim"),
    )


def _figures(status: NodeStatus, inner: int) -> RenderableType:
    share = status.external_share
    learning = Text.assemble(
        (words.bar(share, 12), "cyan"), f"  {share:.0%}", (" of groups are peers'", "dim")
    )
    if status.filled:
        learning.append(f", {status.filled} filled with own", style="dim")
    buffer = status.buffer
    if buffer.sampler not in ("", "uniform"):
        learning.append(f", drawn by {buffer.sampler}", style="dim")
    speed = [f"{status.rounds_per_minute:.1f} rounds/min"] if status.round else []
    speed.append(f"{status.tokens_per_second:,.0f} tokens/s sampled")
    if status.training.step_seconds:
        speed.append(f"step {status.training.step_seconds:.2f} s")
    rows = [
        ("learning from", learning),
        (
            "buffer",
            Text.assemble(
                f"{buffer.local} own" + ("" if status.is_isolated else f", {buffer.external} from peers"),
                (f", {words.size(buffer.bytes)}, {_rejected(buffer.rejected)}", "dim"),
            ),
        ),
        ("speed", Text(", ".join(speed))),
        ("workers", Text("   ").join(_worker(name, worker) for name, worker in status.workers.items())),
    ]
    table = Table.grid(padding=0)
    table.add_column(width=_LABEL_WIDTH, style="dim", no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=inner - _LABEL_WIDTH)
    for label, value in rows[1:] if status.is_isolated else rows:
        table.add_row(label, value)
    return table


def _rejected(rejected: dict[str, int]) -> str:
    return f"{sum(rejected.values()):,} left out" if rejected else "none left out"


def _problems(lines: Sequence[str], inner: int, shown: int) -> list[Text]:
    """At most `shown` of them, each of at most two lines of the screen."""
    hidden = f" (and {len(lines) - shown} more)" if len(lines) > shown else ""
    texts = [f"! {words.printable(line, 2 * inner - 22)}" for line in lines[:shown]]
    if texts:
        texts[-1] += hidden
    return [Text(text, style="yellow", overflow="fold") for text in texts]


def _worker(name: str, worker: WorkerStatus) -> Text:
    style = {"ready": "green", "starting": "cyan", "restarting": "yellow"}.get(worker.state, "dim")
    # Hollow while it is not ready: colour alone does not reach everybody.
    text = Text.assemble(("● " if worker.state == "ready" else "○ ", style), name)
    if worker.restarts:
        text.append(f" ↻{worker.restarts}", style="dim")
    if name in ("trainer", "generator") and worker.idle_share is not None:
        text.append(f" idle {worker.idle_share:.0%}", style="dim")
    return text


def _now(status: NodeStatus) -> str:
    busy = [f"{name} {worker.doing}" for name, worker in status.workers.items() if worker.doing]
    if busy:
        return f"Starting: {words.printable(', '.join(busy), 100)}."
    if status.waiting_for:
        text = words.printable(status.waiting_for, 100)
        return f"{text[0].upper()}{text[1:]}."
    return {"starting": "Starting.", "stopping": "Saving a checkpoint.", "stopped": "Stopped."}.get(
        status.state, "Sampling and training."
    )


def _label(text: str) -> tuple[str, str]:
    return (f"{text:<{_LABEL_WIDTH}}", "dim")


def _line(text: Text) -> Text:
    """A text that stays on one line."""
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _ends(left: Text, right: Text, inner: int) -> Text:
    """One line with a text at each end."""
    left.truncate(max(1, inner - right.cell_len - 1), overflow="ellipsis")
    left.pad_right(inner - left.cell_len - right.cell_len)
    return _line(left.append_text(right))
