"""The estimate against what the processes of the bundled model really take."""

import json
import subprocess
import sys
from pathlib import Path

import swarmd

BENCHMARK = Path(swarmd.__file__).parents[1] / "tests" / "benchmarks" / "bench_memory.py"


def test_the_estimate_is_near_what_trainer_and_generator_take() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--json"], stdout=subprocess.PIPE, text=True, timeout=280, check=True
    )
    for process, row in json.loads(done.stdout.splitlines()[-1]).items():
        assert 0.65 < row["estimated"] / row["measured"] < 1.5, (process, row)
