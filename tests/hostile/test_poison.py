"""Completions that want to run, or to eat what there is, in groups that a real node scores: each costs
its sender verifier time, and nobody anything else.
"""

from pathlib import Path

import psutil
import pytest
from hostile.poison import CANARY, POISON
from hostile.stage import Stage

from swarmd.monitor.status import PeerStatus

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(600)]


def test_poison_runs_nothing_and_stops_nobody(stage: Stage) -> None:
    restarts = verifier_restarts(stage)
    for name in POISON:
        with stage.stranger(name) as who:
            stage.until_heard(
                who, lambda name=name: stage.attacker.do("poison", who=name, names=[name]), is_judged
            )
    stage.honest_is_heard()
    assert list(Path("/tmp").glob(f"{CANARY}*")) == []
    assert not [
        process for process in psutil.process_iter(["cmdline"]) if CANARY in str(process.info["cmdline"])
    ]
    stage.is_unharmed()
    assert verifier_restarts(stage) - restarts <= len(POISON)


def is_judged(book: PeerStatus) -> bool:
    """Whether the group was scored, or given up by the verifier."""
    return book.accepted > 0 or "scoring_failed" in book.rejected


def verifier_restarts(stage: Stage) -> int:
    return sum(worker.restarts for name, worker in stage.status().workers.items() if "verifier" in name)
