"""What an attacker that teaches does to the learning of honest nodes: three honest nodes alone, with an
attacker that sends as much as all of them together, and the same with the screens off.

    python tests/benchmarks/measure_attack.py [ROUNDS] [SEED]...
"""

import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from hostile.teacher import Teacher  # The folder has to be on the path first.

from swarmd.simulate.plan import HeldOut, NetworkPlan, NodePlan, SwarmPlan
from swarmd.simulate.swarm import SimulatedNode, simulate

ARMS = {
    "alone": (False, {}),
    "attacked": (True, {}),
    "attacked, screens off": (
        True,
        {"screens": {"long": "off", "repetitive": "off"}, "training": {"unlikely": "off"}},
    ),
}


def own_reward(nodes: tuple[SimulatedNode, ...]) -> tuple[float, float]:
    """Mean own reward of all nodes over all rounds, and over the last third. Every own task is a new one."""
    curves = [[row.own_reward for row in node.rows if row.own_reward is not None] for node in nodes]
    late = [curve[-len(curve) // 3 :] for curve in curves]
    return tuple(statistics.mean(statistics.mean(curve) for curve in part) for part in (curves, late))


def main(rounds: int, seeds: list[int]) -> None:
    """Print one line for each arm and seed."""
    # The arm that only explains comes last.
    runs = [
        (seed, arm)
        for arms in (("alone", "attacked"), ("attacked, screens off",))
        for seed in seeds
        for arm in arms
    ]
    for seed, arm in runs:
        is_attacked, sections = ARMS[arm]
        plan = SwarmPlan(
            nodes=(NodePlan(),) * 3,
            rounds=rounds,
            seed=seed,
            config=sections,
            network=NetworkPlan(delay=(0.01, 0.01)),
            held_out=HeldOut(every=0),
        )
        teacher = Teacher(seed)
        nodes = simulate(plan, [teacher.run] if is_attacked else [])
        whole, late = own_reward(nodes)
        me = teacher.identity.peer_id
        print(
            f"{arm:24} seed {seed}: own reward {whole:.3f}, last third {late:.3f};",
            f"payload in {teacher.taught} of {teacher.heard} honest completions;" if is_attacked else "",
            f"of the attacker: {nodes[0].accepted.get(me, 0)} accepted, {nodes[0].rejected.get(me, {})},"
            f" screened {nodes[0].screened.get(me, {})};"
            if is_attacked
            else "",
            f"of others screened: {[n for peer, n in nodes[0].screened.items() if peer != me and n]}",
            flush=True,
        )


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:]] or [60, 0, 1, 2]
    main(numbers[0], numbers[1:])
