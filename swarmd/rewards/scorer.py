"""Scores completions with the dataset's own scorer, on the task as regenerated here.

Promises: a reward is a finite number from 0 to 1; whatever a completion does to its scorer, the others
of its group get theirs; what a peer claims about question, answer or reward is never used.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import msgspec

from swarmd.rewards.messages import (
    RegenerateReply,
    RegenerateRequest,
    ScoreReason,
    ScoreReply,
    ScoreRequest,
    ShowReply,
    ShowRequest,
)
from swarmd.types import TaskReference

STRICT_THRESHOLD = 0.99
"""A score above this counts as right where rewards are strict."""
MAX_COMPLETION_CHARACTERS = 65_536
"""No scorer is given more. Manifests limit completions further."""

_SCORE = struct.Struct(">d")
_REGENERATE, _SCORE_GROUP, _SHOW, _WARM_UP = b"R", b"S", b"A", b"W"
# Made here: making them evaluates annotations, which children refuse.
_REGENERATE_DECODER = msgspec.msgpack.Decoder(RegenerateRequest)
_SHOW_DECODER = msgspec.msgpack.Decoder(ShowRequest)
_SCORE_DECODER = msgspec.msgpack.Decoder(ScoreRequest)


class RegeneratedTask(Protocol):
    """A task as the dataset generated it here."""

    @property
    def question(self) -> str:
        """The question, verbatim."""

    @property
    def answer(self) -> str | None:
        """A right answer, where the dataset gives one."""

    def score(self, answer: str) -> float:
        """The dataset's score of an answer. May raise anything."""


class Tasks(Protocol):
    """The tasks of the manifest."""

    def task(self, reference: TaskReference) -> RegeneratedTask | None:
        """Regenerates one. None: not a task of the manifest. May raise anything."""

    def fault(self, number: int) -> str | None:
        """Tries one of the kinds of task. What is wrong with it, or None. May raise anything."""


class Runs(Protocol):
    """Runs the items of a request in children, as Isolation does."""

    def run(self, request: bytes, count: int, *, alone: bool = False) -> list[bytes | ScoreReason]:
        """One result per item."""


class ScoringWork:
    """What a child does. The other side of Scorer."""

    def __init__(self, tasks: Tasks, extract_answer: Callable[[str], str]) -> None:
        self._tasks = tasks
        self._extract_answer = extract_answer

    def __call__(self, request: bytes) -> Callable[[int], bytes]:
        """Opens a request of Scorer; the function turns the number of an item into its result."""
        kind, body = request[:1], request[1:]
        if kind == _WARM_UP:
            return lambda i: _text(self._tasks.fault(int(body)))
        if kind == _REGENERATE:
            references = _REGENERATE_DECODER.decode(body).references
            return lambda i: _text(self._question(references[i]))
        if kind == _SHOW:
            return lambda i: self._part(_SHOW_DECODER.decode(body).reference, i)
        return _GroupWork(self._tasks, self._extract_answer, _SCORE_DECODER.decode(body)).item

    def _question(self, reference: TaskReference) -> str | None:
        task = self._tasks.task(reference)
        return None if task is None else task.question

    def _part(self, reference: TaskReference, i: int) -> bytes:
        """Question or answer of a task."""
        task = self._tasks.task(reference)
        return _text(None if task is None else (task.question, task.answer)[i])


class _GroupWork:
    """Scores one group. Item 0 is the question, item i completion i - 1."""

    def __init__(self, tasks: Tasks, extract_answer: Callable[[str], str], group: ScoreRequest) -> None:
        self._tasks = tasks
        self._extract_answer = extract_answer
        self._group = group
        self._task: RegeneratedTask | None = None

    def item(self, i: int) -> bytes:
        if self._task is None:
            self._task = self._tasks.task(self._group.reference)
        if i == 0:
            return _text(None if self._task is None else self._task.question)
        assert self._task is not None
        completion = self._group.completions_G[i - 1]
        if len(completion) > MAX_COMPLETION_CHARACTERS:
            return ScoreReason.TOO_LONG.encode()
        return _SCORE.pack(float(self._task.score(self._extract_answer(completion))))


class Scorer:
    """Regenerates and scores, in children."""

    def __init__(self, isolation: Runs, *, strict: bool, alone: Collection[str] = ()) -> None:
        """`alone` names datasets whose groups get children that score nothing else."""
        self._isolation = isolation
        self._strict = strict
        self._alone = frozenset(alone)

    def fault_of_warm_up(self, number: int) -> str | ScoreReason | None:
        """What is wrong with a kind of task; None when a task of it can be generated and scored."""
        result = self._isolation.run(_WARM_UP + str(number).encode(), 1, alone=True)[0]
        return result if isinstance(result, ScoreReason) else _read_text(result)

    def regenerate(self, references: Sequence[TaskReference]) -> RegenerateReply:
        """The questions of tasks; None where the task is unknown, or its dataset raises or takes too long."""
        request = _REGENERATE + msgspec.msgpack.encode(RegenerateRequest(tuple(references)))
        results = self._isolation.run(request, len(references))
        return RegenerateReply(tuple(_read_text(result) for result in results))

    def show(self, reference: TaskReference) -> ShowReply:
        """One task. What its dataset does is a reason in the reply, never an exception."""
        request = _SHOW + msgspec.msgpack.encode(ShowRequest(reference))
        question, answer = self._isolation.run(request, 2, alone=True)
        reason = question if isinstance(question, ScoreReason) else None
        if reason is ScoreReason.INVALID:
            reason = ScoreReason.NOT_REGENERATED
        return ShowReply(_read_text(question), _read_text(answer), reason)

    def score(self, reference: TaskReference, completions_G: Sequence[str]) -> ScoreReply:
        """The rewards of one group. Whatever the text does is a reason in the reply, never an exception."""
        request = _SCORE_GROUP + msgspec.msgpack.encode(ScoreRequest(reference, tuple(completions_G)))
        results = self._isolation.run(request, len(completions_G) + 1, alone=reference.dataset in self._alone)
        question = _read_text(results[0])
        if question is None:
            reason = ScoreReason.UNKNOWN_TASK if results[0] == b"" else ScoreReason.NOT_REGENERATED
            return unscored(len(completions_G), reason)
        scored = [self._reward(result) for result in results[1:]]
        return ScoreReply(question, tuple(r for r, _ in scored), tuple(reason for _, reason in scored))

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


def _text(text: str | None) -> bytes:
    # A mark tells text from its absence.
    return b"" if text is None else b"?" + text.encode("utf-8", "surrogatepass")


def _read_text(result: bytes | ScoreReason) -> str | None:
    if isinstance(result, ScoreReason) or not result.startswith(b"?"):
        return None
    # A taken-over child may send anything.
    return result[1:].decode("utf-8", "replace")
