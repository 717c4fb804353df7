"""What the daemon asks of a verifier process, and what comes back."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from swarmd.types import TaskReference, TaskSpec
from swarmd.workers.framing import Method


class ScoreReason(StrEnum):
    """Why a completion got no score of its own (its reward is then 0). The list is closed."""

    TIMEOUT = "timeout"
    """Scoring took too long."""
    MEMORY = "memory"
    """Scoring needed too much memory."""
    CRASHED = "crashed"
    """The scoring process died."""
    INVALID = "invalid"
    """The scorer raised, or gave something that is not a finite number."""
    TOO_LONG = "too_long"
    """The completion is longer than any scorer is given."""
    UNKNOWN_TASK = "unknown_task"
    """The reference names no task of the manifest."""
    NOT_REGENERATED = "not_regenerated"
    """The dataset could not generate the task."""


class VerifierSettings(msgspec.Struct, frozen=True):
    """How to verify."""

    tasks: tuple[TaskSpec, ...]
    strict: bool
    """Reward 1 when the dataset's score is above 0.99, else 0. False: the score as it is."""
    timeout_seconds: float
    """Wall time for one group, and for one call of regenerate."""
    memory_bytes: int
    """Address space of a scoring process above what it starts with."""


class VerifierReady(msgspec.Struct, frozen=True):
    """The verifier has loaded reasoning-gym and closed itself."""

    sandbox_layers: tuple[str, ...]
    """What encloses scoring: some of rlimits, no_new_privs, seccomp, landlock."""
    missing_layers: tuple[str, ...] = ()
    """Layers this machine does not have, each with the reason. For the log."""


class RegenerateRequest(msgspec.Struct, frozen=True):
    """Asks for the questions of tasks."""

    references: tuple[TaskReference, ...]


class RegenerateReply(msgspec.Struct, frozen=True):
    """One question per reference; None where the task cannot be regenerated."""

    questions: tuple[str | None, ...]


class ScoreRequest(msgspec.Struct, frozen=True):
    """Asks for the rewards of one group."""

    reference: TaskReference
    completions_G: tuple[str, ...]


class ScoreReply(msgspec.Struct, frozen=True):
    """The rewards of one group, each 0 to 1, in the order of the completions."""

    question: str | None
    """As regenerated. None: the task could not be, and the rewards mean nothing."""
    rewards_G: tuple[float, ...]
    reasons_G: tuple[str | None, ...]
    """A ScoreReason where the reward is 0 for another cause than a wrong answer."""
    seconds: float = 0.0
    """Processor time of scoring; where a completion ran into its time limit, all the time it took. 0: the
    verifier did not live to say."""


class ShowRequest(msgspec.Struct, frozen=True):
    """Asks for one task, to be looked at by a person."""

    reference: TaskReference


class ShowReply(msgspec.Struct, frozen=True):
    """A task as it was generated."""

    question: str | None
    """None: it could not be generated."""
    answer: str | None
    """A right one, where the dataset gives one."""
    reason: str | None = None
    """A ScoreReason where there is no question."""


INITIALISE = Method("initialise", VerifierSettings, VerifierReady)
REGENERATE = Method("regenerate", RegenerateRequest, RegenerateReply)
SCORE = Method("score", ScoreRequest, ScoreReply, is_work=True)
SHOW = Method("show", ShowRequest, ShowReply)
