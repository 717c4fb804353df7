"""What checkpoints cost: the part of a run's time in which training waits for them, at the default interval.

    python tests/benchmarks/bench_checkpoints.py [--rounds 120]

One node of the bundled model, alone. From its history: what is neither waiting for groups nor the
training step is the end of a round. An end with a checkpoint in it is compared with the others.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from swarmd.config import ScheduleSection
from swarmd.monitor.history import RoundRecord, read_rounds

LIMIT = 0.03


def main() -> int:
    """Print the share; 1 when it is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=120)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        subprocess.run(
            [
                *(sys.executable, "-m", "swarmd", "start", "--home", home, "--isolated", "--model", "tiny"),
                *("--engine", "transformers", "--set", "model.threads=1", "--rounds", str(given.rounds)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=True,
        )
        rounds = read_rounds(home / "history.sqlite")
    every = ScheduleSection().checkpoint_every_rounds
    ends = [(one, end_seconds(one, following)) for one, following in itertools.pairwise(rounds)]
    with_checkpoint = [seconds for one, seconds in ends if one.round % every == 0]
    without = statistics.median(seconds for one, seconds in ends if one.round % every)
    waited = sum(seconds - without for seconds in with_checkpoint)
    share = waited / (rounds[-1].ended_at - rounds[0].ended_at)
    load, *_ = os.getloadavg()
    print(
        f"{len(with_checkpoint)} checkpoints, one every {every} rounds: training waits "
        f"{waited / len(with_checkpoint):.3f} s for each, {share:.2%} of the time (limit {LIMIT:.0%}); "
        f"load {load:.1f}"
    )
    return int(share > LIMIT)


def end_seconds(one: RoundRecord, following: RoundRecord) -> float:
    """From the end of a round's step until the next round begins."""
    return following.ended_at - one.ended_at - following.wait_seconds - following.step_seconds


if __name__ == "__main__":
    sys.exit(main())
