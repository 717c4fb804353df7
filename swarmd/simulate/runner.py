"""The process that simulates one swarm after the other and writes their rows. It keeps its verifier, and
does not load torch again, from run to run. Started by `lanes` as `python -m swarmd.simulate.runner --fd N`.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import msgspec

from swarmd.errors import SwarmdError
from swarmd.simulate.messages import RUN, RunReply, RunRequest
from swarmd.simulate.plan import SwarmPlan
from swarmd.simulate.rows import write_rows
from swarmd.simulate.swarm import simulate_with
from swarmd.simulate.verifier import VerifierProcess
from swarmd.workers.process import handle, report_progress, serve, worker_argument_fd

__all__ = ["Runner", "main"]


class Runner:
    """Answers the calls."""

    def __init__(self) -> None:
        self._verifier = contextlib.ExitStack()
        self._settings: object = None
        self._process: VerifierProcess | None = None

    def run(self, request: RunRequest) -> RunReply:
        """Simulates a swarm."""
        run = request.run
        began, used = time.monotonic(), time.process_time()
        process = self._verifier_for(run.swarm)
        nodes = simulate_with(process.call, run.swarm, on_round=lambda done: report_progress(f"{done:.6f}"))
        rows = [
            msgspec.structs.replace(row, arm=run.arm, learning_rate=run.learning_rate, seed=run.seed)
            for node in nodes
            for row in node.rows
        ]
        try:
            write_rows(Path(request.folder) / run.file, rows)
        except OSError as error:
            raise SwarmdError(f"{run.file} cannot be written: {error.strerror or error}") from error
        return RunReply(time.monotonic() - began, time.process_time() - used)

    def _verifier_for(self, swarm: SwarmPlan) -> VerifierProcess:
        """The running verifier, or a new one where scoring is another."""
        manifest = swarm.manifest()
        settings = (swarm.config.get("rewards"), manifest)
        if self._process is None or settings != self._settings:
            self._verifier.close()
            self._process = self._verifier.enter_context(VerifierProcess(swarm.node_config(), manifest))
            self._settings = settings
        return self._process


def main() -> None:
    """Serves until told to stop."""
    runner = Runner()
    serve(worker_argument_fd(), [handle(RUN, runner.run)])


if __name__ == "__main__":
    main()
