"""Reward over rounds as a PNG, drawn by a process of its own so that matplotlib is never in a daemon:

    python -m swarmd.monitor.plot HISTORY.sqlite... OUT.png [--label NAME]...

Rows are points as they were measured; the thick line is a moving mean, for looking at only.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sqlite3
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from swarmd.errors import SwarmdError
from swarmd.monitor.history import RoundRecord, read_rounds
from swarmd.monitor.words import printable
from swarmd.workers.process import die_with_parent

SMOOTHED_ROUNDS = 10
COLOURS = ("#0b7285", "#d9480f", "#5f3dc4", "#2b8a3e", "#c2255c", "#495057", "#e67700", "#1864ab")


async def plot_in_subprocess(histories: Mapping[str, Path], out: Path, timeout_seconds: float = 60.0) -> None:
    """Draw the histories, by label, into `out`. Raises SwarmdError when that fails or takes too long."""
    options = [word for label in histories for word in ("--label", label)]
    options += ["--parent", str(os.getpid())]
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "swarmd.monitor.plot", *map(str, histories.values()), str(out), *options),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise SwarmdError(f"plot {out} could not be drawn: {error.strerror or error}") from error
    try:
        async with asyncio.timeout(timeout_seconds):
            _, said = await process.communicate()
    except TimeoutError as error:
        raise SwarmdError(f"plot {out} was not drawn within {timeout_seconds:g} s") from error
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    if process.returncode:
        lines = said.decode("utf-8", "replace").strip().splitlines() or [""]
        raise SwarmdError(f"plot {out} could not be drawn: {printable(lines[-1], 200)}")


def smooth(values: Sequence[float], span: int = SMOOTHED_ROUNDS) -> list[float]:
    """Mean of each value and up to `span` - 1 before it."""
    return [
        sum(values[max(0, end - span) : end]) / (end - max(0, end - span))
        for end in range(1, len(values) + 1)
    ]


def draw(histories: Mapping[str, Sequence[RoundRecord]], out: Path) -> None:
    """Draw into `out`, which is complete or not there. Raises OSError."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    for number, (label, records) in enumerate(histories.items()):
        colour = COLOURS[number % len(COLOURS)]
        own = [(r.round, r.own_reward) for r in records if r.own_reward is not None]
        if own:
            rounds, rewards = zip(*own, strict=True)
            axes.plot(rounds, rewards, ".", color=colour, alpha=0.25, markersize=5)
            axes.plot(rounds, smooth(rewards), color=colour, linewidth=2.2, label=f"{label}: own rollouts")
        held_out = [(r.round, r.eval_reward) for r in records if r.eval_reward is not None]
        if held_out:
            rounds, rewards = zip(*held_out, strict=True)
            axes.step(
                rounds,
                rewards,
                "--",
                where="post",
                color=colour,
                linewidth=1.2,
                label=f"{label}: held-out tasks",
            )
    axes.set_xlabel("round")
    axes.set_ylabel("mean reward")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.2)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.has_data():
        axes.legend(frameon=False, fontsize="small", loc="upper left")
    draft = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        figure.savefig(draft, format="png", dpi=120)
        draft.replace(out)
    finally:
        draft.unlink(missing_ok=True)
        pyplot.close(figure)


def main() -> int:
    """Draw what the command line names. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Draw reward over rounds.")
    parser.add_argument("paths", nargs="+", type=Path, help="history files, then the PNG to write")
    parser.add_argument("--label", action="append", default=[], help="name of a history, in order")
    parser.add_argument("--parent", type=int, help="end when this process does, which must be the parent")
    arguments = parser.parse_args()
    if arguments.parent is not None:
        die_with_parent(arguments.parent)
    *sources, out = arguments.paths
    if not sources:
        parser.error("name at least one history and the PNG to write")
    labels = [*arguments.label, *(str(source) for source in sources[len(arguments.label) :])]
    try:
        draw({label: read_rounds(path) for label, path in zip(labels, sources, strict=False)}, out)
    except (OSError, sqlite3.Error) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
