"""What is said to the process that simulates, and what comes back."""

from __future__ import annotations

import msgspec

from swarmd.simulate.plan import SwarmPlan
from swarmd.workers.framing import Method

__all__ = ["RUN", "Run", "RunReply", "RunRequest"]


class Run(msgspec.Struct, frozen=True):
    """One swarm to simulate."""

    arm: str
    learning_rate: float
    seed: int
    swarm: SwarmPlan
    file: str
    """Where its rows go, in the folder of runs."""


class RunRequest(msgspec.Struct, frozen=True):
    """Simulate this."""

    run: Run
    folder: str
    """Where its file goes."""


class RunReply(msgspec.Struct, frozen=True):
    """Its rows are written."""

    seconds: float
    """Start of the simulation to end of writing."""
    processor_seconds: float
    """Of this process, the verifier's apart."""


RUN = Method("run", RunRequest, RunReply)
