"""Runs work on hostile text in forked children.

A request has items. All items of a request run together in a child that lives on for the next request,
because a fork costs more than scoring. Where anything goes wrong with it the child is thrown away and the
items run again one by one, each result written as it is there: when that child dies or hangs, the item it
was at pays for it, and the next child goes on behind it. A request may ask for children of its own.

Promises: an item that hangs, eats memory or kills its child costs only itself; the time for all items of a
request is bounded; nothing that ran as code (see tripwire.py) reaches another request.
"""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from swarmd.rewards.messages import ScoreReason
from swarmd.rewards.records import (
    Record,
    RecordReader,
    pack_record,
    receive_request,
    send_request,
    write_all,
)
from swarmd.rewards.sandbox import Sandbox
from swarmd.rewards.tripwire import OwnText, refuse_evaluation

TOGETHER_SHARE = 0.25
"""Part of the time of a request after which its items are no longer given a chance together."""
MAX_REQUESTS = 1000
"""A shared child serves so many requests, and is then replaced as a precaution."""

_REQUEST_FD = 0
_RESULT_FD = 3

Work = Callable[[bytes], Callable[[int], bytes]]
"""Takes a request, and gives what turns the number of an item into its result. Runs in a child."""


@dataclass
class _Child:
    """A forked child, from this side."""

    pid: int
    reader: RecordReader
    result_fd: int
    request_fd: int | None = None
    """Where requests go. None: it has been forked for one request."""
    requests: int = 0
    busy_seconds: float = 0.0

    def end(self) -> int:
        """Kills it and closes its pipes. Returns its exit status as waitpid tells it."""
        os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        os.close(self.result_fd)
        if self.request_fd is not None:
            os.close(self.request_fd)
        return status


@dataclass
class Isolation:
    """Forks children of this process, which must be warm and closed."""

    sandbox: Sandbox
    work: Work
    timeout_seconds: float
    """For all items of one request."""
    memory_bytes: int
    """Address space of a child above what it starts with."""
    own_text: OwnText = field(default_factory=OwnText)
    """What may still be run as code."""
    _shared: _Child | None = field(default=None, init=False, repr=False)

    def run(self, request: bytes, count: int, *, alone: bool = False) -> list[bytes | ScoreReason]:
        """Results of items 0 ... count - 1 of a request, each bytes or the reason why there is none.

        `alone` gives the request children that serve no other.
        """
        if count == 0:
            return []
        start = time.monotonic()
        if not alone:
            together = self._run_together(request, count, start + TOGETHER_SHARE * self.timeout_seconds)
            if together is not None:
                return together
        return self._run_one_by_one(request, count, start + self.timeout_seconds)

    def processor_seconds(self) -> float:
        """Processor time of this process and of all children so far, living ones included."""
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        living = 0.0 if self._shared is None else time.clock_gettime(_processor_clock(self._shared.pid))
        return time.process_time() + ended.ru_utime + ended.ru_stime + living

    def close(self) -> None:
        """Ends the shared child."""
        if self._shared is not None:
            self._shared.end()
            self._shared = None

    def _run_together(self, request: bytes, count: int, deadline: float) -> list[bytes | ScoreReason] | None:
        """All results, from the shared child. None: something is wrong, and that child is gone."""
        child = self._shared or self._fork_shared()
        self._shared = None  # Until it has shown that it is as it should be.
        results: list[bytes | ScoreReason] = []
        start = time.monotonic()
        try:
            assert child.request_fd is not None
            if not send_request(child.request_fd, request, count, deadline):
                return None
            while len(results) < count:
                record = child.reader.next(deadline)
                if not isinstance(record, Record) or record.index != len(results):
                    return None
                if record.outcome is ScoreReason.MEMORY:
                    # It may be that others had used it up.
                    return None
                results.append(record.outcome)
            if not child.reader.is_empty:
                return None
            child.requests += 1
            child.busy_seconds += time.monotonic() - start
            if child.requests < MAX_REQUESTS and child.busy_seconds < self.timeout_seconds:
                self._shared = child
        finally:
            if self._shared is not child:
                child.end()
        return results

    def _run_one_by_one(self, request: bytes, count: int, end: float) -> list[bytes | ScoreReason]:
        """No item may take more than half of the time that is left, so that one that hangs leaves some."""
        results: list[bytes | ScoreReason] = []
        while len(results) < count:
            if time.monotonic() >= end:
                results += [ScoreReason.TIMEOUT] * (count - len(results))
                break
            self._run_child(request, count, end, results)
        return results

    def _run_child(self, request: bytes, count: int, end: float, results: list[bytes | ScoreReason]) -> None:
        """Appends at least one result: those of one child, and its end where that came too early."""
        first = len(results)
        child = self._fork(lambda: self._answer_each(request, range(first, count)))
        timed_out = False
        try:
            while len(results) < count:
                now = time.monotonic()
                record = child.reader.next(now + (end - now) / 2)
                if not isinstance(record, Record):
                    timed_out = record is ScoreReason.TIMEOUT
                    break
                if record.index != len(results):
                    break
                results.append(record.outcome)
        finally:
            status = child.end()
        if len(results) < count:
            results.append(ScoreReason.TIMEOUT if timed_out else _cause_of_death(status))

    def _fork_shared(self) -> _Child:
        read_fd, write_fd = os.pipe()
        os.set_blocking(write_fd, False)
        child = self._fork(self._answer_all, read_fd)
        os.close(read_fd)
        child.request_fd = write_fd
        return child

    def _fork(self, answer: Callable[[], None], request_fd: int | None = None) -> _Child:
        """A child that is closed, answers, and ends."""
        parent_pid = os.getpid()
        read_fd, write_fd = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                _keep_only(write_fd, request_fd)
                self.sandbox.close_child(self.memory_bytes, 2 * int(self.timeout_seconds) + 2, parent_pid)
                refuse_evaluation(self.own_text)
                answer()
            finally:
                os._exit(1)
        os.close(write_fd)
        return _Child(pid, RecordReader(read_fd), read_fd)

    def _answer_all(self) -> None:
        """In the shared child: requests until the parent closes the pipe, each answered in one piece."""
        while (received := receive_request(_REQUEST_FD)) is not None:
            request, count = received
            work = self.work(request)
            records = [pack_record(index, _outcome(work, index)) for index in range(count)]
            write_all(_RESULT_FD, b"".join(records))

    def _answer_each(self, request: bytes, indices: range) -> None:
        """In a child of its own: one request, each result written at once."""
        work = self.work(request)
        for index in indices:
            write_all(_RESULT_FD, pack_record(index, _outcome(work, index)))


def _processor_clock(pid: int) -> int:
    """The clock of a process's processor time on Linux, as clock_getcpuclockid(3) makes it."""
    return (~pid << 3) | 2


def _outcome(work: Callable[[int], bytes], index: int) -> bytes | ScoreReason:
    """The result of an item, or why there is none."""
    try:
        return work(index)
    except MemoryError:
        return ScoreReason.MEMORY
    except BaseException:  # noqa: BLE001 - scorers raise anything on hostile text
        return ScoreReason.INVALID


def _keep_only(result_fd: int, request_fd: int | None) -> None:
    """Leaves the pipes as 0 and 3 and /dev/null as what is left of 0-2: the daemon's socket and the log
    are gone.
    """
    null_fd = os.open(os.devnull, os.O_RDWR)
    # Through copies above, since the pipes may themselves be among 0-3.
    result, request, null = (
        _copy_above(fd) for fd in (result_fd, null_fd if request_fd is None else request_fd, null_fd)
    )
    for fd, target in ((request, _REQUEST_FD), (null, 1), (null, 2), (result, _RESULT_FD)):
        os.dup2(fd, target)
    os.closerange(_RESULT_FD + 1, os.sysconf("SC_OPEN_MAX"))


def _copy_above(fd: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_DUPFD, _RESULT_FD + 1)


def _cause_of_death(status: int) -> ScoreReason:
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        return ScoreReason.TIMEOUT
    return ScoreReason.CRASHED
