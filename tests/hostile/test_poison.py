"""Completions that want to run, or to eat what there is, in groups that a real node scores: each costs
its sender verifier time, and nobody anything else.
"""

from pathlib import Path

import psutil
import pytest
from hostile.poison import CANARY, POISON
from hostile.stage import Stage

from swarmd.monitor.status import PeerStatus

pytestmark = pytest.mark.swarm


def test_poison_runs_nothing_and_stops_nobody(stage: Stage) -> None:
    restarts = verifier_restarts(stage)
    for name in POISON:
        who = stage.attacker.appear(name, stage.victim_address)["peer_id"]
        stage.until_heard(
            who, lambda name=name: stage.attacker.do("poison", who=name, names=[name]), is_judged
        )
        stage.attacker.do("vanish", who=name)
    stage.honest_is_heard()
    assert list(Path("/tmp").glob(f"{CANARY}*")) == []
    assert not [
        process for process in psutil.process_iter(["cmdline"]) if CANARY in str(process.info["cmdline"])
    ]
    assert stage.others_rejected() == {}
    assert stage.memory() - stage.memory_before < 100_000_000
    assert verifier_restarts(stage) - restarts <= len(POISON)


def is_judged(book: PeerStatus) -> bool:
    """Whether the group was scored, or given up by the verifier."""
    return book.accepted > 0 or "scoring_failed" in book.rejected


def verifier_restarts(stage: Stage) -> int:
    return sum(worker.restarts for name, worker in stage.status().workers.items() if "verifier" in name)
