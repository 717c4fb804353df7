"""Whether the simulation agrees with real swarms: the same settings, as real nodes on loopback and
simulated, one swarm for each seed. Questions cannot be the same, since they follow from the nodes' peer
ids; so the two are compared within the spread over seeds.

Real swarms that are done already are not run again, nor are simulated ones. The result is printed, and
written to DIR/agreement.json. Eight real nodes on two quiet cores take some seconds a round.

Run: python tests/benchmarks/compare_swarm.py --out DIR [--nodes 8] [--rounds 20] [--seeds 3] [--mix 4/4]
    [--delay 0]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from swarmd.simulate.histories import history_rows, runs_with_histories
from swarmd.simulate.measures import measure
from swarmd.simulate.rows import Row, read_rows

SETTINGS = (
    "training.learning_rate=3e-4",
    "training.warmup_steps=0",
    "generation.engine=transformers",
    "model.device=cpu",
    "model.threads=1",
)
"""Of both. A real node has warm-up otherwise, and may have another engine."""
REAL_SETTINGS = (
    "schedule.mode=synchronous",
    "schedule.eval_every_rounds=0",
    "schedule.checkpoint_every_rounds=0",
)
"""A simulated node samples, shares and trains in turn. A real one begins before its peers are there: its
first rounds have none of theirs, as those of a simulated one where messages take long (--delay).
"""


@dataclass(frozen=True)
class Swarm:
    """One swarm: means over its nodes."""

    own_reward: float
    """Own reward, unfiltered, mean over rounds."""
    last_third: float
    """The same over the last third of the rounds."""
    external_groups: float
    """Peers' groups trained on, a round."""


def main() -> None:
    """Run what is missing, then write and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--mix", default="4/4", help="own and external groups of a batch")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--delay", default="0", help="rounds that a simulated message takes, D or FROM-TO")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    real = [_real(arguments, seed) for seed in range(arguments.seeds)]
    simulated = _simulated(arguments)
    result = {name: _compare(name, real, simulated) for name in Swarm.__dataclass_fields__}
    kept = {"real": list(map(asdict, real)), "simulated": list(map(asdict, simulated)), **result}
    (arguments.out / "agreement.json").write_text(json.dumps(kept, indent=1) + "\n")
    print(f"{'':<17} {'real':>17} {'simulated':>17}   difference in standard deviations")
    for name, found in result.items():
        distance = "needs two seeds" if found["distance"] is None else f"{found['distance']:+.2f}"
        print(
            f"{name:<17} {found['real']:>8.4f} ± {found['real_sd']:.4f} "
            f"{found['simulated']:>8.4f} ± {found['simulated_sd']:.4f}   {distance}"
        )


def _real(arguments: argparse.Namespace, seed: int) -> Swarm:
    """A swarm of real nodes, by their histories."""
    kept = arguments.out / f"real-{seed}"
    if not kept.exists():
        home = arguments.out / "home"
        shutil.rmtree(home, ignore_errors=True)
        local, external = arguments.mix.split("/")
        settings = (
            *SETTINGS,
            *REAL_SETTINGS,
            f"replay.local_groups={local}",
            f"replay.external_groups={external}",
        )
        _run(
            ["swarm", "local", "--nodes", str(arguments.nodes), "--rounds", str(arguments.rounds)],
            ["--seed", str(seed), "--home", str(home), "--model", arguments.model],
            settings,
        )
        home.rename(kept)
    ((seed_there, histories),) = runs_with_histories(kept).items()
    return _swarm(history_rows(seed_there, histories))


def _simulated(arguments: argparse.Namespace) -> list[Swarm]:
    """As many simulated swarms, by their rows."""
    folder = arguments.out / f"simulated-{arguments.delay}"
    _run(
        ["simulate", "--nodes", str(arguments.nodes), "--rounds", str(arguments.rounds)],
        ["--seeds", str(arguments.seeds), "--arms", arguments.mix, "--model", arguments.model],
        SETTINGS,
        ["--eval-every", "0", "--delay", arguments.delay, "--out", str(folder)],
    )
    return [_swarm(read_rows(file)) for file in sorted((folder / "runs").glob("*.parquet"))]


def _swarm(rows: Sequence[Row]) -> Swarm:
    found = measure(rows)
    rewards = [reward for _, reward in found.own_curve]
    external = [row.groups_external for row in rows if row.round]
    return Swarm(
        own_reward=statistics.fmean(rewards),
        last_third=statistics.fmean(rewards[-max(1, len(rewards) // 3) :]),
        external_groups=statistics.fmean(external),
    )


def _compare(name: str, real: Sequence[Swarm], simulated: Sequence[Swarm]) -> dict[str, float | None]:
    """Means, standard deviations over seeds, and the difference in pooled standard deviations."""
    mine = [getattr(swarm, name) for swarm in real]
    theirs = [getattr(swarm, name) for swarm in simulated]
    real_sd, simulated_sd = (
        statistics.stdev(values) if len(values) > 1 else 0.0 for values in (mine, theirs)
    )
    pooled = math.sqrt((real_sd**2 + simulated_sd**2) / 2)
    difference = statistics.fmean(theirs) - statistics.fmean(mine)
    return {
        "real": statistics.fmean(mine),
        "real_sd": real_sd,
        "simulated": statistics.fmean(theirs),
        "simulated_sd": simulated_sd,
        "distance": difference / pooled if pooled else None,
    }


def _run(command: list[str], options: list[str], settings: Sequence[str], more: Sequence[str] = ()) -> None:
    sets = [word for setting in settings for word in ("--set", setting)]
    subprocess.run(
        [sys.executable, "-m", "swarmd", *command, *options, *sets, *more],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        check=True,
    )


if __name__ == "__main__":
    main()
