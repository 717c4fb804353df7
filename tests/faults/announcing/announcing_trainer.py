"""The trainer process of swarmd, telling when it trains, publishes and saves. The last two are slowed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from announcements import announced

from swarmd.entrypoints import trainer
from swarmd.training import checkpoint
from swarmd.training.messages import SaveReply, SaveRequest, StepReply, StepRequest
from swarmd.weights.host import HostWriter


class _AnnouncingTrainer(trainer.TrainerProcess):
    def step(self, request: StepRequest) -> StepReply:
        """As the trainer does it."""
        with announced("training"):
            return super().step(request)

    def save(self, request: SaveRequest) -> SaveReply:
        """As the trainer does it."""
        with announced("saving"):
            return super().save(request)


def slowed(operation: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        time.sleep(seconds)
        return operation(*arguments)

    return run


def announced_fill(writer: HostWriter, *arguments: Any) -> int:
    with announced("publishing"):
        return fill(writer, *arguments)


fill = HostWriter._fill

if __name__ == "__main__":
    trainer.TrainerProcess = _AnnouncingTrainer  # type: ignore[misc]
    HostWriter._fill = announced_fill  # type: ignore[method-assign]
    HostWriter._copy_in = slowed(HostWriter._copy_in, 0.002)  # type: ignore[method-assign]
    checkpoint.save_file = slowed(checkpoint.save_file, 0.02)
    checkpoint._flush = slowed(checkpoint._flush, 0.02)
    trainer.main()
