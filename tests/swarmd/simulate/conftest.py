"""A verifier for simulated swarms, and made-up rows of them."""

from collections.abc import Callable, Sequence

import pytest

from swarmd.config import Config
from swarmd.simulate.rows import Row
from swarmd.simulate.verifier import VerifierProcess
from swarmd.tasks.manifest import Manifest

MakeRows = Callable[..., list[Row]]


@pytest.fixture(scope="package")
def verifier():
    """One verifier process for all swarms of these tests."""
    with VerifierProcess(Config(), Manifest.load("tiny")) as running:
        yield running


@pytest.fixture(scope="session")
def make_rows() -> MakeRows:
    """A factory: rows of a swarm whose nodes earn `own` in each round, and `heldout` at each fifth one."""

    def make(
        arm: str,
        seed: int,
        *,
        own: Sequence[float] = (0.1,) * 20,
        heldout: Sequence[float] = (0.0, 0.1, 0.2, 0.2, 0.3),
        learning_rate: float = 3e-4,
        nodes: int = 2,
        kind: str = "honest",
        model: str = "",
        first_node: int = 0,
    ) -> list[Row]:
        rows = []
        for node in range(first_node, first_node + nodes):
            for number in range(len(own) + 1):
                held = heldout[number // 5] if number % 5 == 0 else None
                rows.append(
                    Row(
                        arm=arm,
                        learning_rate=learning_rate,
                        seed=seed,
                        node=node,
                        kind=kind,
                        model=model,
                        round=number,
                        virtual_seconds=float(number),
                        wall_seconds=0.5,
                        own_reward=own[number - 1] if number else None,
                        own_reward_by_task={"bf": own[number - 1]} if number else {},
                        groups_generated=4 if number else 0,
                        own_groups_with_signal=1 if number else 0,
                        groups_own=4 if number else 0,
                        groups_external=4 if number else 0,
                        groups_with_signal=6 if number else 0,
                        entropy=0.5 if number else None,
                        completion_tokens=5.0 if number else None,
                        updates=number,
                        heldout_reward=held,
                        heldout_by_task={} if held is None else {"bf": held, "arc_1d": 0.0},
                    )
                )
        return rows

    return make
