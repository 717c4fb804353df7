"""What each sampling rule costs: one draw of 4 from 512 groups of peers, as a ratio to `uniform`, in turns.

Run: python tests/benchmarks/bench_sampling.py [--groups N] [--repeats N]
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

from swarmd.replay.rules import Candidate, Draw, answer
from swarmd.replay.samplers import SAMPLERS
from swarmd.types import Completion, FinishReason, Prompt, RolloutGroup, TaskReference

WANTED = 4
GROUP_SIZE = 8
KINDS = 9


def main() -> None:
    """Time all rules in turns and print their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=50)
    arguments = parser.parse_args()
    chance = random.Random(0)
    candidates = tuple(
        Candidate(
            make_group(number, chance),
            age_seconds=chance.random() * 600,
            versions_behind=chance.randrange(12),
            own_success=chance.random(),
            author_usefulness=chance.random(),
        )
        for number in range(arguments.groups)
    )
    own = tuple(make_group(-1 - number, chance) for number in range(WANTED))
    seconds: dict[str, list[float]] = {name: [] for name in SAMPLERS}
    for repeat in range(arguments.repeats):
        for name, rule in SAMPLERS.items():
            draw = Draw(candidates, WANTED, own, random.Random(repeat))
            started = time.perf_counter()
            answer(rule, draw)
            seconds[name].append(time.perf_counter() - started)
    uniform = statistics.median(seconds["uniform"])
    print(f"{arguments.groups} groups; uniform {uniform * 1000:.2f} ms a draw")
    for name, measured in seconds.items():
        ratios = sorted(one / uniform for one in measured)
        tenth = len(ratios) // 10
        print(
            f"{name:<11} {statistics.median(ratios):6.1f} ({ratios[tenth]:.1f} to {ratios[-1 - tenth]:.1f})"
        )


def make_group(number: int, chance: random.Random) -> RolloutGroup:
    """One with rewards that differ."""
    right = chance.randrange(1, GROUP_SIZE)
    return RolloutGroup(
        group_id=f"{number:x}",
        author=f"peer {number % 8}",
        is_local=number < 0,
        task=TaskReference(f"task {number % KINDS}", "digest", 0, abs(number)),
        prompt=Prompt("plain", "question"),
        completions_G=(Completion("answer", FinishReason.STOP),) * GROUP_SIZE,
        rewards_G=(1.0,) * right + (0.0,) * (GROUP_SIZE - right),
        policy_version=number,
        created_at=0.0,
        received_at=0.0,
        size_bytes=1000,
    )


if __name__ == "__main__":
    main()
