"""How a swarm on one machine looks: all nodes on one live screen, or in one line now and then where
there is no terminal, and a table of what was learned at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from swarmd.monitor import words
from swarmd.monitor.history import RoundRecord
from swarmd.monitor.local_swarm import NodeView
from swarmd.monitor.screen import STATE_STYLES
from swarmd.monitor.summary import SPAN_ROUNDS, improvement, ratio_text

_FULL_TABLE_WIDTH = 76
_FIXED_LINES = 11
"""Lines of the screen without nodes, chart and problems; one stays empty at the bottom."""


def render_swarm(
    nodes: Sequence[NodeView], seconds: float, folder: Path, *, stopping: bool, width: int, height: int
) -> RenderableType:
    """All nodes for a terminal of `width` x `height` characters."""
    inner = max(40, min(width, 140) - 4)
    problems = _problems(nodes, inner)[: max(1, min(6, height - _FIXED_LINES - len(nodes) - 2))]
    shown = nodes[: max(1, height - _FIXED_LINES - len(problems))]
    room = height - _FIXED_LINES - len(shown) - len(problems)
    title = Text.assemble(("swarmd  ", "bold"), f"{words.many(len(nodes), 'node')} on this machine")
    title.pad_right(max(1, inner - title.cell_len - len(words.duration(seconds))))
    title.append(words.duration(seconds), style="dim")
    body: list[RenderableType] = [
        Text(""),
        title,
        Text(""),
        _table(shown, inner),
        Text(""),
        *_chart(nodes, inner, max(1, min(12, room))),
        Text(""),
        *problems,
        Text(_now(nodes, stopping), style="dim"),
        _one_line(f"Ctrl-C stops all nodes. Files: {folder}", inner),
    ]
    padded = Table.grid(padding=0)
    padded.add_column(width=2)
    padded.add_column(width=inner)
    padded.add_row("", Group(*body))
    return padded


def swarm_line(nodes: Sequence[NodeView], seconds: float) -> str:
    """All nodes in one line."""
    return f"{words.duration(seconds)}: " + "; ".join(_node_line(node) for node in nodes)


def final_table(
    nodes: Sequence[NodeView], rounds: Mapping[str, Sequence[RoundRecord]], width: int
) -> RenderableType:
    """What each node learned: reward at first and at last, and the groups it accepted from each other.

    `width` is that of the terminal; what does not fit into it is left out or summed up, never cut.
    """
    learned = _learned(nodes, rounds, is_brief=width < _FULL_TABLE_WIDTH)
    if len(nodes) == 1:
        return Group(Text(""), learned, Text(""))
    accepted = _accepted_from_each(nodes)
    if Measurement.get(Console(width=10_000), Console(width=10_000).options, accepted).maximum > width:
        accepted = _accepted_in_sum(nodes)
    return Group(Text(""), learned, Text(""), accepted, Text(""))


def _learned(
    nodes: Sequence[NodeView], rounds: Mapping[str, Sequence[RoundRecord]], *, is_brief: bool
) -> Table:
    more = () if is_brief else ("rounds", "held-out", "from peers")
    fewest = min((len(records) for records in rounds.values()), default=0)
    span = min(SPAN_ROUNDS, max(1, fewest // 2))
    table = _columns("own reward", f"first {span}", f"last {span}", "ratio", *more)

    def add(name: str, rewards: tuple[float | None, float | None, float | None], rest: Sequence[str]) -> None:
        first, last, ratio = rewards
        figures = (words.reward(first), words.reward(last), Text(ratio_text(ratio), style="bold"))
        table.add_row(name, *figures, *(() if is_brief else rest))

    each = [improvement(rounds.get(node.name, ())) for node in nodes]
    for node, rewards in zip(nodes, each, strict=True):
        status = node.status
        done = str(status.round if status else 0)
        share = f"{status.external_share:.0%}" if status else ""
        add(node.name, rewards, (done, words.reward(status.reward.eval if status else None), share))
    if len(nodes) > 1:
        add("all nodes", _mean_improvement(each), ("", "", ""))
    return table


def _mean_improvement(
    each: Sequence[tuple[float | None, float | None, float | None]],
) -> tuple[float | None, float | None, float | None]:
    """First and last as means over the nodes that have both, and the ratio of these means."""
    both = [(first, last) for first, last, _ in each if first is not None and last is not None]
    if not both:
        return (None, None, None)
    first, last = (sum(values) / len(both) for values in zip(*both, strict=True))
    return (first, last, last / first if first else None)


def _accepted_from_each(nodes: Sequence[NodeView]) -> Table:
    table = _columns("groups accepted", *(f"from {node.name}" for node in nodes))
    for node in nodes:
        cells = ("·" if node is other else str(_accepted(node, other)) for other in nodes)
        table.add_row(f"by {node.name}", *cells)
    return table


def _accepted_in_sum(nodes: Sequence[NodeView]) -> Table:
    """The same for more nodes than have room next to each other."""
    table = _columns("groups accepted", "from nodes", "in all", "fewest", "most")
    for node in nodes:
        counts = [_accepted(node, other) for other in nodes if other is not node]
        heard = sum(count > 0 for count in counts)
        figures = (f"{heard}/{len(counts)}", str(sum(counts)), str(min(counts)), str(max(counts)))
        table.add_row(f"by {node.name}", *figures)
    return table


def final_notes(nodes: Sequence[NodeView], plot: Path | None, folder: Path) -> list[str]:
    """Lines to print after the table, uncut: who failed and why, where the plot and the files are."""
    failures = [
        f"{node.name} failed with exit code {node.exit_code}: {words.printable(node.last_words, 500)}"
        for node in nodes
        if node.has_failed
    ]
    return [*failures, f"Plot: {plot}" if plot else "There is no plot.", f"Files of the nodes: {folder}"]


def _columns(first: str, *others: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column(first, no_wrap=True, min_width=len("groups accepted"))
    for heading in others:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _table(nodes: Sequence[NodeView], inner: int) -> RenderableType:
    spark = max(8, inner - 62)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False, collapse_padding=True)
    table.add_column("", width=8, no_wrap=True)
    table.add_column("", width=10, no_wrap=True)
    table.add_column("round", width=7, no_wrap=True, justify="right")
    table.add_column("own reward", width=7 + spark, no_wrap=True)
    table.add_column("peers", width=5, no_wrap=True, justify="right")
    table.add_column("from peers", width=10, no_wrap=True, justify="right")
    for node in nodes:
        table.add_row(*_row(node, spark))
    return table


def _row(node: NodeView, spark: int) -> tuple[RenderableType, ...]:
    status = node.status
    state: str = "starting" if status is None else status.state
    style = STATE_STYLES.get(state, "dim")
    if node.exit_code is not None:
        state, style = ("failed", "red") if node.has_failed else ("done", "dim")
    mark = Text.assemble((("● " if state == "training" else "○ "), style), state)
    if status is None:
        return (node.name, mark, "", "", "", "")
    of_all = f"/{status.rounds}" if status.rounds else ""
    (line,) = words.sparkline(status.reward.recent, spark)
    return (
        node.name,
        mark,
        Text.assemble(str(status.round), (of_all, "dim")),
        Text.assemble(words.reward(status.reward.local_mean), "  ", (line, "cyan")),
        str(status.peers),
        f"{status.external_share:.0%}",
    )


def _chart(nodes: Sequence[NodeView], inner: int, lines: int) -> list[RenderableType]:
    """The nodes' mean reward over the rounds that all of them have done."""
    recents = [node.status.reward.recent for node in nodes if node.status and node.status.reward.recent]
    if len(recents) < len(nodes) or not recents:
        return [Text("mean own reward of all nodes appears after their first round", style="dim")]
    common = min(len(recent) for recent in recents)
    means = [sum(values) / len(values) for values in zip(*(r[:common] for r in recents), strict=True)]
    head = Text.assemble(("mean own reward of all nodes  ", "dim"), (words.reward(means[-1]), "bold"))
    if len(means) >= 2 * SPAN_ROUNDS:
        first, last = sum(means[:SPAN_ROUNDS]) / SPAN_ROUNDS, sum(means[-SPAN_ROUNDS:]) / SPAN_ROUNDS
        head.append(f"   {words.reward(first)} → {words.reward(last)}", style="dim")
    return [head, *(Text(line, style="cyan", no_wrap=True) for line in words.sparkline(means, inner, lines))]


def _problems(nodes: Sequence[NodeView], inner: int) -> list[Text]:
    lines: list[str] = []
    for node in nodes:
        if node.has_failed:
            lines.append(f"{node.name} failed: {node.last_words}")
        elif node.status is not None and node.exit_code is None:
            # That only loopback is announced is what a swarm on one machine means to do.
            problems = [problem for problem in node.status.problems if "loopback" not in problem]
            lines += [f"{node.name}: {problem}" for problem in problems]
    return [Text(f"! {words.printable(line, inner - 2)}", style="yellow", no_wrap=True) for line in lines]


def _now(nodes: Sequence[NodeView], stopping: bool) -> str:
    if stopping:
        return "Stopping: each node saves a checkpoint."
    starting = [node for node in nodes if node.status is None or node.status.state == "starting"]
    if starting:
        workers = starting[0].status.workers.values() if starting[0].status else ()
        doing = next((worker.doing for worker in workers if worker.doing), "loading libraries")
        return f"Starting {words.many(len(starting), 'node')}: {words.printable(doing, 50)}."
    return "Sampling, sharing and training."


def _node_line(node: NodeView) -> str:
    if node.has_failed:
        return f"{node.name} failed: {words.printable(node.last_words, 120)}"
    if node.status is None:
        return f"{node.name} starting"
    status = node.status
    of_all = f"/{status.rounds}" if status.rounds else ""
    return (
        f"{node.name} {'done' if node.exit_code == 0 else status.state} round {status.round}{of_all} "
        f"reward {words.reward(status.reward.local_mean)} {words.many(status.peers, 'peer')} "
        f"{status.external_share:.0%} from peers"
    )


def _accepted(node: NodeView, other: NodeView) -> int:
    if other.status is None:
        return 0
    return sum(peer.accepted for peer in node.peers if peer.peer_id == other.status.peer_id)


def _one_line(text: str, inner: int) -> Text:
    return Text(words.printable(text, inner), style="dim", no_wrap=True)
