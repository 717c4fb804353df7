"""Completions that want to run, or to eat what there is, in groups that a real node scores: each costs
its sender verifier time, and nobody anything else.
"""

from pathlib import Path

import psutil
import pytest
from hostile.poison import CANARY, POISON
from hostile.stage import Stage, until

pytestmark = pytest.mark.swarm


def test_poison_runs_nothing_and_stops_nobody(stage: Stage) -> None:
    restarts = verifier_restarts(stage)
    for name in POISON:
        who = stage.attacker.appear(name, stage.victim_address)["peer_id"]
        stage.attacker.do("poison", who=name, names=[name])
        until(lambda who=who: is_judged(stage, who))
        stage.attacker.do("vanish", who=name)
    stage.honest_is_heard()
    assert list(Path("/tmp").glob(f"{CANARY}*")) == []
    assert not [
        process for process in psutil.process_iter(["cmdline"]) if CANARY in str(process.info["cmdline"])
    ]
    assert stage.others_rejected() == {}
    assert stage.memory() - stage.memory_before < 100_000_000
    assert verifier_restarts(stage) - restarts <= len(POISON)


def is_judged(stage: Stage, who: str) -> bool:
    """Whether the group was scored, or given up by the verifier."""
    book = stage.books().get(who)
    return book is not None and (book.accepted > 0 or "scoring_failed" in book.rejected)


def verifier_restarts(stage: Stage) -> int:
    return sum(worker.restarts for name, worker in stage.status().workers.items() if "verifier" in name)
