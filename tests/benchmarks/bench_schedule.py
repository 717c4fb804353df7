"""What overlapping generation and training is worth: the asynchronous schedule against the synchronous.

Both run the same real node, isolated, on the bundled model, and take turns. Counted from the node's
history, without the first rounds: groups trained a minute, and the part of the time in which trainer
and generator waited for work.

As it is, generator and trainer compete for the cores of this machine. In the second part both are made
to wait by sleeping (`slowed/node.py`), as with an engine and a trainer that have devices of their own:
sampling the groups of a round lasts at least as long as a training step. That is where overlap pays
most: at best twice as many groups.

Run: python tests/benchmarks/bench_schedule.py [--repeats N] [--rounds N] [--set key=value]...
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from swarmd.monitor.history import RoundRecord, read_rounds

NODE = Path(__file__).parent / "slowed" / "node.py"
WARM_UP_ROUNDS = 5
SAMPLE_SECONDS = 1.0
"""A round's 8 groups are sampled in two calls of 4 questions."""
STEP_SECONDS = 2.0
MODES = ("synchronous", "asynchronous")


@dataclass(frozen=True)
class Figures:
    """Of one run."""

    groups_per_minute: float
    trainer_idle: float
    generator_idle: float
    step_seconds: float


def main() -> None:
    """Print a table for each part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE")
    arguments = parser.parse_args()
    _compare("as it is", arguments, 0.0, 0.0)
    _compare(
        f"calls of {SAMPLE_SECONDS:g} s, steps of {STEP_SECONDS:g} s", arguments, SAMPLE_SECONDS, STEP_SECONDS
    )


def _compare(title: str, arguments: argparse.Namespace, sample_seconds: float, step_seconds: float) -> None:
    runs: dict[str, list[Figures]] = {mode: [] for mode in MODES}
    for _ in range(arguments.repeats):
        for mode in MODES:
            runs[mode].append(_run(mode, arguments.rounds, arguments.settings, sample_seconds, step_seconds))
    print(title)
    for mode in MODES:
        print(
            f"  {mode:<13} groups a minute {_spread([run.groups_per_minute for run in runs[mode]], '.0f')}, "
            f"idle: trainer {_spread([run.trainer_idle for run in runs[mode]], '.0%')}, "
            f"generator {_spread([run.generator_idle for run in runs[mode]], '.0%')}, "
            f"step {_spread([run.step_seconds for run in runs[mode]], '.2f')} s"
        )
    ratios = [
        after.groups_per_minute / before.groups_per_minute
        for before, after in zip(runs["synchronous"], runs["asynchronous"], strict=True)
    ]
    print(f"  ratio         {_spread(ratios, '.2f')}", flush=True)


def _run(mode: str, rounds: int, settings: list[str], sample_seconds: float, step_seconds: float) -> Figures:
    with tempfile.TemporaryDirectory(prefix="swarmd-bench-") as folder:
        settings = [
            f"schedule.mode={mode}",
            "schedule.eval_every_rounds=0",
            "schedule.checkpoint_every_rounds=0",
            "model.threads=1",
            "model.device=cpu",
            *settings,
        ]
        subprocess.run(
            [
                *(sys.executable, str(NODE), "start", "--isolated", "--model", "tiny", "--home", folder),
                *("--engine", "transformers", "--rounds", str(rounds)),
                *(word for setting in settings for word in ("--set", setting)),
            ],
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "SAMPLE_SECONDS": str(sample_seconds),
                "STEP_SECONDS": str(step_seconds),
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        return _figures(read_rounds(Path(folder) / "history.sqlite"))


def _figures(history: tuple[RoundRecord, ...]) -> Figures:
    rounds = history[WARM_UP_ROUNDS:]
    starts = [record.ended_at for record in history[WARM_UP_ROUNDS - 1 : -1]]
    seconds = [record.ended_at - start for start, record in zip(starts, rounds, strict=True)]
    trainer_idle = [record.trainer_idle_share or 0.0 for record in rounds]
    generator_idle = [record.generator_idle_share or 0.0 for record in rounds]
    return Figures(
        groups_per_minute=60 * sum(record.local_groups for record in rounds) / sum(seconds),
        trainer_idle=statistics.fmean(trainer_idle, seconds),
        generator_idle=statistics.fmean(generator_idle, seconds),
        step_seconds=statistics.mean(record.step_seconds for record in rounds),
    )


def _spread(values: list[float], form: str) -> str:
    """Median, and lowest and highest."""
    middle = f"{statistics.median(values):{form}}"
    return middle if len(values) == 1 else f"{middle} ({min(values):{form}} to {max(values):{form}})"


if __name__ == "__main__":
    main()
