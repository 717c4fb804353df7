"""How long a person waits for the command line: help, a mistake, the configuration, the status.

python tests/benchmarks/bench_command_line.py
"""

import statistics
import subprocess
import sys
import tempfile
import time

RUNS = 7
COMMANDS = (
    ("swarmd --help", ["--help"], 0, 0.5),
    ("wrong flag", ["start", "--modle", "tiny"], 2, 2.0),
    ("wrong key", ["start", "--set", "node.sede=1"], 2, 2.0),
    ("wrong value", ["start", "--set", "training.learning_rate=fast"], 2, 2.0),
    ("unknown model", ["start", "--model", "tyni"], 2, 2.0),
    ("config show", ["config", "show"], 0, 2.0),
    ("status", ["status"], 0, 2.0),
)


def main() -> int:
    """Print a line for each command; 1 when one is slower than promised."""
    is_slow = False
    with tempfile.TemporaryDirectory() as home:
        for name, arguments, expected_code, limit_seconds in COMMANDS:
            seconds = statistics.median(timed(arguments, home, expected_code) for _ in range(RUNS))
            is_slow |= seconds > limit_seconds
            print(f"{name:<16} {seconds:6.3f} s  (limit {limit_seconds:g} s, median of {RUNS})")
    return int(is_slow)


def timed(arguments: list[str], home: str, expected_code: int) -> float:
    """Wall seconds of one run in its own process."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "swarmd", *arguments],
        env={"SWARMD_HOME": home},
        capture_output=True,
        check=False,
    )
    seconds = time.perf_counter() - began
    if done.returncode != expected_code:
        sys.exit(
            f"{arguments}: exit code {done.returncode}, expected {expected_code}: {done.stderr.decode()}"
        )
    return seconds


if __name__ == "__main__":
    sys.exit(main())
