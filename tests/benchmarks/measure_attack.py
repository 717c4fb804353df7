"""What an attacker that teaches does to the learning of honest nodes: three honest nodes alone, with an
attacker that sends as much as all of them together, and the same with the screens off. Tells the reward of
own groups and of held-out tasks, and at the end whether the difference that the attacker makes lies within
the spread of the seeds without it.

    python tests/benchmarks/measure_attack.py [ROUNDS] [SEED]...
"""

import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from hostile.teacher import Teacher  # The folder has to be on the path first.

from swarmd.simulate.plan import HeldOut, NetworkPlan, NodePlan, SwarmPlan
from swarmd.simulate.swarm import SimulatedNode, simulate

ARMS = {
    "alone": (False, {}),
    "attacked": (True, {}),
    "attacked, share capped": (True, {"screens": {"batch_share": "drop", "batch_share_most": 0.25}}),
    "attacked, screens off": (
        True,
        {"screens": {"long": "off", "repetitive": "off"}, "training": {"unlikely": "off"}},
    ),
}
HELD_OUT_TASKS = 512


@dataclass(frozen=True)
class Outcome:
    """Means over the honest nodes of one run."""

    own: float
    """Reward of own groups over all rounds. Every own task is a new one."""
    late: float
    """The same over the last third."""
    held_out: float
    """Reward of the held-out tasks after the last round."""


def outcome(nodes: tuple[SimulatedNode, ...]) -> Outcome:
    """What came of a run."""
    curves = [[row.own_reward for row in node.rows if row.own_reward is not None] for node in nodes]
    evaluated = [
        [row.heldout_reward for row in node.rows if row.heldout_reward is not None] for node in nodes
    ]
    return Outcome(
        own=statistics.mean(map(statistics.mean, curves)),
        late=statistics.mean(statistics.mean(curve[-len(curve) // 3 :]) for curve in curves),
        held_out=statistics.mean(rewards[-1] for rewards in evaluated),
    )


def run(arm: str, rounds: int, seed: int) -> Outcome:
    """One run, told in a line."""
    is_attacked, sections = ARMS[arm]
    plan = SwarmPlan(
        nodes=(NodePlan(),) * 3,
        rounds=rounds,
        seed=seed,
        config=sections,
        network=NetworkPlan(delay=(0.01, 0.01)),
        held_out=HeldOut(every=rounds, tasks=HELD_OUT_TASKS, temperature=0.0),
    )
    teacher = Teacher(seed)
    nodes = simulate(plan, [teacher.run] if is_attacked else [])
    found, me = outcome(nodes), teacher.identity.peer_id
    print(
        f"{arm:24} seed {seed}: own reward {found.own:.3f}, last third {found.late:.3f},"
        f" held out {found.held_out:.3f};",
        f"payload in {teacher.taught} of {teacher.heard} honest completions;"
        f" of the attacker: {nodes[0].accepted.get(me, 0)} accepted, {nodes[0].rejected.get(me, {})},"
        f" screened {nodes[0].screened.get(me, {})};"
        if is_attacked
        else "",
        f"of others screened: {[n for peer, n in nodes[0].screened.items() if peer != me and n]}",
        flush=True,
    )
    return found


def main(rounds: int, seeds: list[int]) -> None:
    """Print one line for each seed and arm, and the comparisons with the swarms alone."""
    compared = ("alone", "attacked", "attacked, share capped")
    found = {arm: [] for arm in compared}
    for seed in seeds:
        for arm in compared:
            found[arm].append(run(arm, rounds, seed))
    if len(seeds) > 1:
        for arm in compared[1:]:
            for name in ("own", "late", "held_out"):
                alone, attacked = ([getattr(each, name) for each in found[of]] for of in ("alone", arm))
                cost, spread = statistics.mean(alone) - statistics.mean(attacked), statistics.stdev(alone)
                print(
                    f"{name}: alone {statistics.mean(alone):.3f} +- {spread:.3f}, {arm}"
                    f" {statistics.mean(attacked):.3f} +- {statistics.stdev(attacked):.3f}; it costs"
                    f" {cost:.3f}, {'within' if cost <= spread else 'above'} the spread of the seeds",
                    flush=True,
                )
    # The arm that only explains comes last.
    for seed in seeds[:2]:
        run("attacked, screens off", rounds, seed)


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:]] or [30, 0, 1, 2, 3, 4]
    main(numbers[0], numbers[1:])
