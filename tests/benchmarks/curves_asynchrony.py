"""Learning curves of the asynchronous schedule against the synchronous one, on real nodes.

Each run is one isolated node of the bundled model. The three arms of a seed have the same identity and
seed, so the same stream of questions. In the asynchronous arms a training step lasts at least
--step-seconds (`slowed/node.py`), so that sampling gets ahead and the lag of up to 4 versions really
occurs. Runs that are done already are not run again; a broken-off one is. The result is
DIR/curves.csv (one row a round), DIR/summary.json and DIR/curves.png.

Run: python tests/benchmarks/curves_asynchrony.py --out DIR [--seeds 5] [--rounds 60]
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from swarmd.identity import Identity
from swarmd.monitor.history import RoundRecord, read_rounds

LAST = 10
"""Rounds at the end of a run whose mean reward is compared."""
AHEAD = ("schedule.max_ahead=40", "replay.max_policy_lag=4")
ARMS = {
    "synchronous": ("schedule.mode=synchronous", "training.importance=token_truncated"),
    "asynchronous": (*AHEAD, "training.importance=token_truncated"),
    "asynchronous, no correction": (*AHEAD, "training.importance=none"),
}
NODE = Path(__file__).parent / "slowed" / "node.py"


def main() -> None:
    """Run what is missing, then write and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--step-seconds", type=float, default=1.8)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    runs: dict[tuple[str, int], tuple[RoundRecord, ...]] = {}
    for seed in range(arguments.seeds):
        for arm in ARMS:
            runs[arm, seed] = _run(arguments, arm, seed)
            print(f"{arm}, seed {seed}: last {LAST} rounds {_last(runs[arm, seed]):.3f}", flush=True)
    _write_rows(arguments.out / "curves.csv", runs)
    summary = {arm: _summary([runs[arm, seed] for seed in range(arguments.seeds)]) for arm in ARMS}
    (arguments.out / "summary.json").write_text(json.dumps(summary, indent=1))
    _plot(arguments.out / "curves.png", runs, arguments.seeds)
    for arm, figures in summary.items():
        print(arm)
        for name, value in figures.items():
            print(f"  {name:<22} {value}")


def _run(arguments: argparse.Namespace, arm: str, seed: int) -> tuple[RoundRecord, ...]:
    history = arguments.out / f"{arm.replace(', ', '-').replace(' ', '-')}-{seed}.sqlite"
    if not history.exists():
        home = arguments.out / "home"
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        identity = arguments.out / f"identity-{seed}.key"
        Identity.load_or_create(identity)
        shutil.copy2(identity, home / "identity.key")
        # The synchronous arm waits for nothing by design: slowing it would only take longer.
        seconds = arguments.step_seconds if "schedule.mode=synchronous" not in ARMS[arm] else 0.0
        subprocess.run(
            [
                *(sys.executable, str(NODE), "start", "--isolated", "--model", "tiny", "--home", str(home)),
                *("--engine", "transformers", "--rounds", str(arguments.rounds), "--seed", str(seed)),
                *_set("model.threads=1", "model.device=cpu", "schedule.eval_every_rounds=20"),
                *_set("schedule.eval_tasks=64", "schedule.checkpoint_every_rounds=0", *ARMS[arm]),
            ],
            env={**os.environ, "OMP_NUM_THREADS": "1", "STEP_SECONDS": str(seconds)},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        shutil.copy2(home / "history.sqlite", history)
        shutil.rmtree(home)
    return read_rounds(history)


def _set(*pairs: str) -> list[str]:
    return [word for pair in pairs for word in ("--set", pair)]


def _rewards(rounds: tuple[RoundRecord, ...]) -> list[float]:
    return [record.own_reward or 0.0 for record in rounds]


def _last(rounds: tuple[RoundRecord, ...]) -> float:
    return statistics.mean(_rewards(rounds)[-LAST:])


def _summary(runs: list[tuple[RoundRecord, ...]]) -> dict[str, Any]:
    lags: Counter[int] = Counter()
    for rounds in runs:
        for record in rounds:
            lags.update(dict(enumerate(record.lag_groups)))
    evaluated = [rounds[-1].eval_reward for rounds in runs if rounds[-1].eval_reward is not None]
    return {
        f"last {LAST} rounds": _spread([_last(rounds) for rounds in runs]),
        "area under the curve": _spread([sum(_rewards(rounds)) for rounds in runs]),
        "held-out tasks": _spread(evaluated),
        "groups by lag": [lags[lag] for lag in range(max(lags, default=0) + 1)],
        "sampler_kl": _spread([statistics.mean(r.sampler_kl or 0.0 for r in rounds) for rounds in runs]),
    }


def _spread(values: list[float]) -> dict[str, Any]:
    return {
        "mean": round(statistics.mean(values), 4),
        "sd": round(statistics.stdev(values), 4) if len(values) > 1 else None,
        "each": [round(value, 4) for value in values],
    }


def _write_rows(path: Path, runs: dict[tuple[str, int], tuple[RoundRecord, ...]]) -> None:
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["arm", "seed", "round", "own_reward", "eval_reward", "sampler_kl", "lag_groups"])
        for (arm, seed), rounds in runs.items():
            for record in rounds:
                lags = " ".join(map(str, record.lag_groups))
                table.writerow(
                    [arm, seed, record.round, record.own_reward, record.eval_reward, record.sampler_kl, lags]
                )


def _plot(path: Path, runs: dict[tuple[str, int], tuple[RoundRecord, ...]], seeds: int) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.4), dpi=100)
    for arm in ARMS:
        curves = [_smooth(_rewards(runs[arm, seed])) for seed in range(seeds)]
        means = [statistics.mean(values) for values in zip(*curves, strict=True)]
        rounds = range(1, len(means) + 1)
        axes.plot(rounds, means, label=arm)
        low = [min(values) for values in zip(*curves, strict=True)]
        high = [max(values) for values in zip(*curves, strict=True)]
        axes.fill_between(rounds, low, high, alpha=0.15)
    axes.set_xlabel("round")
    axes.set_ylabel("own reward, mean of 10 rounds")
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path)


def _smooth(values: list[float]) -> list[float]:
    """Mean of up to LAST values up to each."""
    return [statistics.mean(values[max(0, end - LAST) : end]) for end in range(1, len(values) + 1)]


if __name__ == "__main__":
    main()
