"""Runs work on hostile text in forked children that are thrown away.

Promises: nothing a child does outlives it; an item that hangs, eats memory or kills its child costs
only itself; the time for all items together is bounded. Items run in one child for speed; after a death
the next child goes on behind the item that was running.
"""

from __future__ import annotations

import os
import select
import signal
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

from swarmd.rewards.messages import ScoreReason
from swarmd.rewards.sandbox import Sandbox

MAX_RESULT_BYTES = 1_000_000

_HEADER = struct.Struct(">IBI")
_RESULT_FD = 3
_FAILURES = (ScoreReason.INVALID, ScoreReason.MEMORY)


@dataclass(frozen=True)
class Isolation:
    """Forks children of this process, which must be warm and closed."""

    sandbox: Sandbox
    timeout_seconds: float
    """For all items of one run."""
    memory_bytes: int
    """Address space of a child above what it starts with."""

    def run(self, count: int, work: Callable[[int], bytes]) -> list[bytes | ScoreReason]:
        """Results of work(0) ... work(count - 1), each bytes or the reason why there is none.

        No item may take more than half of the time that is left, so one that hangs leaves some to others.
        """
        end = time.monotonic() + self.timeout_seconds
        results: list[bytes | ScoreReason] = []
        while len(results) < count:
            if time.monotonic() >= end:
                results += [ScoreReason.TIMEOUT] * (count - len(results))
                break
            self._run_child(count, work, end, results)
        return results

    def _run_child(
        self, count: int, work: Callable[[int], bytes], end: float, results: list[bytes | ScoreReason]
    ) -> None:
        """Appends at least one result: those of one child, and its end where that came too early."""
        parent_pid = os.getpid()
        read_fd, write_fd = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                self._be_child(write_fd, range(len(results), count), work, parent_pid)
            finally:
                os._exit(1)
        os.close(write_fd)
        timed_out = False
        try:
            reader = _Reader(read_fd)
            while len(results) < count:
                now = time.monotonic()
                record = reader.next(now + (end - now) / 2)
                if not isinstance(record, _Record):
                    timed_out = record is ScoreReason.TIMEOUT
                    break
                if record.index != len(results):
                    break
                results.append(record.outcome)
        finally:
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            os.close(read_fd)
        if len(results) < count:
            results.append(ScoreReason.TIMEOUT if timed_out else _cause_of_death(status))

    def _be_child(self, write_fd: int, indices: range, work: Callable[[int], bytes], parent_pid: int) -> None:
        _keep_only(write_fd)
        self.sandbox.close_child(self.memory_bytes, int(self.timeout_seconds) + 2, parent_pid)
        for index in indices:
            try:
                _write(index, None, work(index))
            except MemoryError:
                _write(index, ScoreReason.MEMORY, b"")
            except BaseException:  # noqa: BLE001 - scorers raise anything on hostile text
                _write(index, ScoreReason.INVALID, b"")


@dataclass(frozen=True)
class _Record:
    index: int
    outcome: bytes | ScoreReason


class _Reader:
    """Reads a child's records. The child may be taken over: nothing it writes is trusted."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._data = b""

    def next(self, deadline: float) -> _Record | ScoreReason:
        """The next record; TIMEOUT at the deadline, CRASHED when the child has ended or writes nonsense."""
        while True:
            record = self._parse()
            if record is not None:
                return record
            ready, _, _ = select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return ScoreReason.TIMEOUT
            chunk = os.read(self._fd, 65_536)
            if not chunk:
                return ScoreReason.CRASHED
            self._data += chunk

    def _parse(self) -> _Record | ScoreReason | None:
        if len(self._data) < _HEADER.size:
            return None
        index, status, length = _HEADER.unpack_from(self._data)
        if length > MAX_RESULT_BYTES or status > len(_FAILURES):
            return ScoreReason.CRASHED
        if len(self._data) < _HEADER.size + length:
            return None
        payload = self._data[_HEADER.size : _HEADER.size + length]
        self._data = self._data[_HEADER.size + length :]
        return _Record(index, payload if status == 0 else _FAILURES[status - 1])


def _write(index: int, failure: ScoreReason | None, payload: bytes) -> None:
    if len(payload) > MAX_RESULT_BYTES:
        failure, payload = ScoreReason.INVALID, b""
    status = 0 if failure is None else _FAILURES.index(failure) + 1
    data = _HEADER.pack(index, status, len(payload)) + payload
    while data:
        data = data[os.write(_RESULT_FD, data) :]


def _keep_only(write_fd: int) -> None:
    """Leaves /dev/null as 0-2 and the result pipe as 3: the daemon's socket and the log are gone."""
    os.dup2(write_fd, _RESULT_FD)
    null_fd = os.open(os.devnull, os.O_RDWR)
    for fd in range(_RESULT_FD):
        os.dup2(null_fd, fd)
    os.closerange(_RESULT_FD + 1, os.sysconf("SC_OPEN_MAX"))


def _cause_of_death(status: int) -> ScoreReason:
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        return ScoreReason.TIMEOUT
    return ScoreReason.CRASHED
