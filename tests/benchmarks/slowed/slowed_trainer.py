"""The trainer process of swarmd, taking STEP_SECONDS or longer for a step."""

from __future__ import annotations

import os
import time

from swarmd.entrypoints import trainer
from swarmd.training.messages import StepReply, StepRequest

SECONDS = float(os.environ.get("STEP_SECONDS", "0"))


class _SlowedTrainer(trainer.TrainerProcess):
    def step(self, request: StepRequest) -> StepReply:
        """As the trainer does it, and then wait."""
        began = time.monotonic()
        reply = super().step(request)
        time.sleep(max(0.0, SECONDS - (time.monotonic() - began)))
        return reply


if __name__ == "__main__":
    trainer.TrainerProcess = _SlowedTrainer  # type: ignore[misc]
    trainer.main()
