"""Scores completions with the dataset's own scorer, on the task as regenerated here.

Promises: a reward is a finite number from 0 to 1; whatever a completion does to its scorer, the others
of its group get theirs; what a peer claims about question, answer or reward is never used.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import Protocol

from swarmd.rewards.isolation import Isolation
from swarmd.rewards.messages import RegenerateReply, ScoreReason, ScoreReply
from swarmd.types import TaskReference

STRICT_THRESHOLD = 0.99
"""A score above this counts as right where rewards are strict."""
MAX_COMPLETION_CHARACTERS = 65_536
"""No scorer is given more. Manifests limit completions further."""

_SCORE = struct.Struct(">d")


class RegeneratedTask(Protocol):
    """A task as the dataset generated it here."""

    @property
    def question(self) -> str:
        """The question, verbatim."""

    def score(self, answer: str) -> float:
        """The dataset's score of an answer. May raise anything."""


class Scorer:
    """Regenerates and scores, each request in children of its own."""

    def __init__(
        self,
        load_task: Callable[[TaskReference], RegeneratedTask | None],
        extract_answer: Callable[[str], str],
        isolation: Isolation,
        *,
        strict: bool,
    ) -> None:
        """`load_task` gives None for a reference outside the manifest."""
        self._load_task = load_task
        self._extract_answer = extract_answer
        self._isolation = isolation
        self._strict = strict

    def regenerate(self, references: Sequence[TaskReference]) -> RegenerateReply:
        """The questions of tasks; None where the task is unknown, or its dataset raises or takes too long."""
        results = self._isolation.run(len(references), lambda i: self._question(references[i]))
        return RegenerateReply(tuple(_text(result) for result in results))

    def score(self, reference: TaskReference, completions_G: Sequence[str]) -> ScoreReply:
        """The rewards of one group. Whatever the text does is a reason in the reply, never an exception."""
        tasks: list[RegeneratedTask] = []  # Filled once in each child.

        def work(i: int) -> bytes:
            if i == 0:
                return self._question(reference)
            if len(completions_G[i - 1]) > MAX_COMPLETION_CHARACTERS:
                return ScoreReason.TOO_LONG.encode()
            if not tasks:
                task = self._load_task(reference)
                assert task is not None
                tasks.append(task)
            return self._score(tasks[0], completions_G[i - 1])

        results = self._isolation.run(len(completions_G) + 1, work)
        question = _text(results[0])
        if question is None:
            reason = ScoreReason.UNKNOWN_TASK if results[0] == b"" else ScoreReason.NOT_REGENERATED
            return unscored(len(completions_G), reason)
        scored = [self._reward(result) for result in results[1:]]
        return ScoreReply(question, tuple(r for r, _ in scored), tuple(reason for _, reason in scored))

    def _question(self, reference: TaskReference) -> bytes:
        task = self._load_task(reference)
        # Empty: not a task of the manifest. A question starts with a mark, so it is never empty.
        return b"" if task is None else b"?" + task.question.encode("utf-8", "surrogatepass")

    def _score(self, task: RegeneratedTask, completion: str) -> bytes:
        return _SCORE.pack(float(task.score(self._extract_answer(completion))))

    def _reward(self, result: bytes | ScoreReason) -> tuple[float, ScoreReason | None]:
        if isinstance(result, ScoreReason):
            return 0.0, result
        if result == ScoreReason.TOO_LONG.encode():
            return 0.0, ScoreReason.TOO_LONG
        score = _SCORE.unpack(result)[0] if len(result) == _SCORE.size else math.nan
        if not math.isfinite(score):
            return 0.0, ScoreReason.INVALID
        if self._strict:
            return float(score > STRICT_THRESHOLD), None
        return min(1.0, max(0.0, score)), None


def unscored(group_size: int, reason: ScoreReason) -> ScoreReply:
    """The reply for a group whose task could not be regenerated or whose verifier failed."""
    return ScoreReply(None, (0.0,) * group_size, (reason,) * group_size)


def _text(result: bytes | ScoreReason) -> str | None:
    if isinstance(result, ScoreReason) or not result.startswith(b"?"):
        return None
    # A taken-over child may send anything.
    return result[1:].decode("utf-8", "replace")
