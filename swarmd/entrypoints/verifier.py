"""The verifier process: loads reasoning-gym, closes itself, then regenerates and scores on request.

It introduces the rooms tasks and rewards to each other. Run by the daemon's supervisor as
`python -m swarmd.entrypoints.verifier --fd N`.
"""

from __future__ import annotations

import gc
import os
import time

import msgspec

from swarmd.errors import ConfigError, SwarmdError
from swarmd.rewards.isolation import Isolation
from swarmd.rewards.messages import (
    INITIALISE,
    REGENERATE,
    SCORE,
    SHOW,
    RegenerateReply,
    RegenerateRequest,
    ScoreReason,
    ScoreReply,
    ScoreRequest,
    ShowReply,
    ShowRequest,
    VerifierReady,
    VerifierSettings,
)
from swarmd.rewards.sandbox import close_process, limit_growth
from swarmd.rewards.scorer import Scorer, ScoringWork
from swarmd.rewards.tripwire import OwnText
from swarmd.tasks.prompt import extract_answer
from swarmd.workers.process import handle, report_progress, serve, worker_argument_fd

WARM_UP_SECONDS = 60.0
"""For one task to load what it needs; half of it for the first that is generated."""


class Verifier:
    """Answers the calls. The first must be initialise, and comes once: a closed process stays closed."""

    def __init__(self) -> None:
        self._scorer: Scorer | None = None
        self._processor_seconds = time.process_time

    def initialise(self, settings: VerifierSettings) -> VerifierReady:
        """Loads, warms and closes. Raises ConfigError for a task that reasoning-gym does not take."""
        if self._scorer is not None:
            raise SwarmdError("the verifier is initialised already")
        report_progress("loading reasoning-gym")
        # Seconds of import, and not before the daemon has been told what they are for.
        from swarmd.tasks.reasoning_gym import ALONE, EVALUATION_TOOLS, OWN_TEXT, TaskLibrary

        library = TaskLibrary(settings.tasks)
        # Twice, so that the children's own limit is the one that they meet.
        limit_growth(2 * settings.memory_bytes)
        sandbox = close_process()
        # Only behind the closed door: a manifest may come from a stranger.
        work = ScoringWork(library, extract_answer)
        own_text = OwnText(OWN_TEXT, EVALUATION_TOOLS)
        isolation, patient = (
            Isolation(sandbox, work, timeout_seconds, settings.memory_bytes, own_text)
            for timeout_seconds in (settings.timeout_seconds, WARM_UP_SECONDS)
        )
        scorer, trial = (Scorer(runs, strict=settings.strict, alone=ALONE) for runs in (isolation, patient))
        for number, task in enumerate(settings.tasks):
            fault = trial.fault_of_warm_up(number)
            if isinstance(fault, ScoreReason):
                raise ConfigError(f"task {task.dataset}: generates nothing: {fault}")
            if fault is not None:
                raise ConfigError(fault)
            # It is known to end now. Data files and late imports are loaded here once, not in each child.
            library.warm_up(number)
        # Children share these pages as long as no collection writes into them.
        gc.collect()
        gc.freeze()
        self._scorer = scorer
        self._processor_seconds = isolation.processor_seconds
        return VerifierReady(sandbox.layers, () if sandbox.is_closed else sandbox.missing)

    def regenerate(self, request: RegenerateRequest) -> RegenerateReply:
        """Questions of tasks."""
        return self._ready().regenerate(request.references)

    def show(self, request: ShowRequest) -> ShowReply:
        """One task with a right answer, for a person."""
        return self._ready().show(request.reference)

    def score(self, request: ScoreRequest) -> ScoreReply:
        """Rewards of one group."""
        scorer = self._ready()
        began, used = time.monotonic(), self._processor_seconds()
        reply = scorer.score(request.reference, request.completions_G)
        # Processor time: on a busy machine an honest group waits long and costs little. What had to be
        # waited for to the end of its time costs all of it.
        seconds = self._processor_seconds() - used
        if ScoreReason.TIMEOUT in reply.reasons_G:
            seconds = max(seconds, time.monotonic() - began)
        return msgspec.structs.replace(reply, seconds=seconds)

    def _ready(self) -> Scorer:
        if self._scorer is None:
            raise SwarmdError("the verifier is not initialised")
        return self._scorer


def main() -> None:
    """Serves until the daemon says stop."""
    # One thread: children are forked, and verifiers share the machine with the trainer.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    verifier = Verifier()
    serve(
        worker_argument_fd(),
        [
            handle(INITIALISE, verifier.initialise),
            handle(REGENERATE, verifier.regenerate),
            handle(SCORE, verifier.score),
            handle(SHOW, verifier.show),
        ],
    )


if __name__ == "__main__":
    main()
