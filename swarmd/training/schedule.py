"""The learning rate as a function of the number of optimizer steps taken."""

from __future__ import annotations

import math

from swarmd.training.messages import TrainingOptions

__all__ = ["learning_rate"]


def learning_rate(options: TrainingOptions, steps: int) -> float:
    """Learning rate of the optimizer step that follows `steps` steps.

    Rises linearly over the first `warmup_steps` and reaches the full rate at the last of them. Then
    it stays (constant), or falls along a line (linear) or half a cosine (cosine) to zero at
    `schedule_steps`, where it remains.
    """
    if steps < options.warmup_steps:
        return options.learning_rate * (steps + 1) / options.warmup_steps
    if options.schedule == "constant":
        return options.learning_rate
    done = (steps - options.warmup_steps) / (options.schedule_steps - options.warmup_steps)
    done = min(1.0, done)
    if options.schedule == "linear":
        return options.learning_rate * (1.0 - done)
    if options.schedule == "cosine":
        return options.learning_rate * 0.5 * (1.0 + math.cos(math.pi * done))
    raise ValueError(f"schedule must be constant, linear or cosine, got {options.schedule!r}")
