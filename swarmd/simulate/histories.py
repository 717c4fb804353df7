"""Rows from the histories of real nodes, so that real swarms are reported on like simulated ones.

`swarmd swarm local --home DIR` makes DIR/run-1, DIR/run-2 and so on, each with a home for every node: a run
is a seed. The arm is I/J, as the last round had it. What a history does not hold stays empty.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from swarmd.errors import SwarmdError
from swarmd.monitor.history import RoundRecord, read_rounds
from swarmd.simulate.rows import Row

__all__ = ["history_rows", "runs_with_histories"]

_RUN = re.compile(r"run-(\d+)")


def runs_with_histories(folder: Path) -> dict[int, list[Path]]:
    """The history files of each run in `folder`, by the run's number."""
    runs = {}
    for run in folder.iterdir():
        found = _RUN.fullmatch(run.name)
        histories = sorted(run.glob("node-*/history.sqlite")) if found else []
        if found and histories:
            runs[int(found[1])] = histories
    return dict(sorted(runs.items()))


def history_rows(seed: int, histories: Sequence[Path]) -> list[Row]:
    """The rows of one swarm, a node for each history. Raises SwarmdError for one that cannot be read."""
    nodes = []
    for path in histories:
        try:
            nodes.append(read_rounds(path))
        except sqlite3.Error as error:
            raise SwarmdError(f"{path} cannot be read as a history: {error}") from error
    last = next((records[-1] for records in nodes if records), None)
    if last is None:
        raise SwarmdError(f"{histories[0].parent.parent} has no round: the nodes have not trained yet")
    arm = f"{last.local_groups - last.filled_groups}/{last.external_groups + last.filled_groups}"
    return [
        _row(arm, seed, number, records, place)
        for number, records in enumerate(nodes)
        for place in range(len(records))
    ]


def _row(arm: str, seed: int, node: int, records: Sequence[RoundRecord], place: int) -> Row:
    record = records[place]
    before = records[place - 1] if place else None
    # A history repeats the last evaluation until the next one.
    is_new = before is None or record.eval_reward != before.eval_reward
    ended_before = before.ended_at if before else record.ended_at
    return Row(
        arm=arm,
        learning_rate=next((r.learning_rate for r in records if r.learning_rate), 0.0),
        seed=seed,
        node=node,
        kind="honest",
        round=record.round,
        virtual_seconds=float(record.round),
        wall_seconds=max(0.0, record.ended_at - ended_before),
        own_reward=record.own_reward,
        entropy=record.entropy,
        groups_own=record.local_groups,
        groups_external=record.external_groups,
        groups_filled=record.filled_groups,
        groups_with_signal=record.groups_with_signal,
        external_reward=record.external_reward,
        updates=sum(r.updates for r in records[: place + 1]),
        policy_version=record.policy_version,
        grad_norm=record.grad_norm,
        mean_ratio=record.mean_ratio,
        clipped_share=record.clipped_share,
        dropped_share=record.dropped_share,
        effective_share=record.effective_share,
        heldout_reward=record.eval_reward if is_new else None,
    )
