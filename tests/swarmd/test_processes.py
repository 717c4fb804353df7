"""With what the workers are started again."""

from pathlib import Path
from typing import Any

import pytest

from swarmd import processes as module
from swarmd.config_sources import load_config
from swarmd.errors import WorkerError
from swarmd.loops.state import LoopState
from swarmd.models.placement import Place, Placement
from swarmd.models.resolve import resolve
from swarmd.paths import Home
from swarmd.processes import Processes
from swarmd.tasks.manifest import Manifest
from swarmd.workers.connection import KILLED
from swarmd.workers.supervisor import WorkerEvent

CPU = Place("cpu", "float32", 1.0, "")


class NewTrainer:
    """Takes what it is initialised with."""

    async def call(self, method: object, settings: Any, timeout_seconds: float) -> None:
        self.tokens_at_once = settings.options.tokens_at_once
        raise WorkerError("that was all")


async def tokens_of_next(processes: Processes) -> int:
    trainer = NewTrainer()
    with pytest.raises(WorkerError):
        await processes._start_trainer(trainer)  # type: ignore[arg-type]
    return int(trainer.tokens_at_once)


async def test_a_trainer_that_the_kernel_has_ended_for_want_of_memory_starts_again_smaller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = 7
    monkeypatch.setattr(module, "memory_kills", lambda: kills)
    events: list[WorkerEvent] = []
    processes = Processes(
        load_config().config,
        Home(tmp_path),
        resolve("tiny"),
        Placement(CPU, CPU, tokens_at_once=1024),
        Manifest.load("tiny"),
        LoopState(),
        events.append,
    )
    killed = WorkerEvent("trainer", "failed", f"{KILLED}; its last words: step")
    processes._note(killed)  # By a person: the kernel's count is what it was.
    assert await tokens_of_next(processes) == 1024
    kills += 1
    processes._note(WorkerEvent("generator", "failed", KILLED))
    processes._note(WorkerEvent("trainer", "failed", "exited with code 1"))
    assert await tokens_of_next(processes) == 1024
    for tokens in (512, 256, 256):
        kills += 1
        processes._note(killed)
        assert await tokens_of_next(processes) == tokens
    assert len(events) == 6
