"""What a scoring child and its parent say to each other through pipes. The child may be taken over:
nothing it writes is trusted, and neither side waits beyond its deadline.
"""

from __future__ import annotations

import os
import select
import struct
import time
from dataclasses import dataclass

from swarmd.rewards.messages import ScoreReason

MAX_RESULT_BYTES = 1_000_000

_REQUEST = struct.Struct(">II")
_RECORD = struct.Struct(">IBI")
_FAILURES = (ScoreReason.INVALID, ScoreReason.MEMORY)


@dataclass(frozen=True)
class Record:
    """What one item gave."""

    index: int
    outcome: bytes | ScoreReason


class RecordReader:
    """Reads a child's records from a pipe."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._data = b""

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been received beyond the records taken."""
        return not self._data

    def next(self, deadline: float) -> Record | ScoreReason:
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

    def _parse(self) -> Record | ScoreReason | None:
        if len(self._data) < _RECORD.size:
            return None
        index, status, length = _RECORD.unpack_from(self._data)
        if length > MAX_RESULT_BYTES or status > len(_FAILURES):
            return ScoreReason.CRASHED
        if len(self._data) < _RECORD.size + length:
            return None
        payload = self._data[_RECORD.size : _RECORD.size + length]
        self._data = self._data[_RECORD.size + length :]
        return Record(index, payload if status == 0 else _FAILURES[status - 1])


def pack_record(index: int, outcome: bytes | ScoreReason) -> bytes:
    """A record as bytes. One that is too large becomes INVALID."""
    if isinstance(outcome, bytes) and len(outcome) > MAX_RESULT_BYTES:
        outcome = ScoreReason.INVALID
    if isinstance(outcome, ScoreReason):
        return _RECORD.pack(index, _FAILURES.index(outcome) + 1, 0)
    return _RECORD.pack(index, 0, len(outcome)) + outcome


def send_request(fd: int, request: bytes, count: int, deadline: float) -> bool:
    """Writes a request for `count` items to a pipe that does not block. False: the child does not take it."""
    data = memoryview(_REQUEST.pack(count, len(request)) + request)
    while data:
        _, ready, _ = select.select([], [fd], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return False
        try:
            data = data[os.write(fd, data) :]
        except BrokenPipeError:
            return False
    return True


def receive_request(fd: int) -> tuple[bytes, int] | None:
    """The next request and its number of items; None when the parent has closed the pipe."""
    header = _read_exactly(fd, _REQUEST.size)
    if header is None:
        return None
    count, length = _REQUEST.unpack(header)
    request = _read_exactly(fd, length)
    return None if request is None else (request, count)


def write_all(fd: int, data: bytes) -> None:
    """Writes all of it. Raises OSError when nobody reads any more."""
    while data:
        data = data[os.write(fd, data) :]


def _read_exactly(fd: int, count: int) -> bytes | None:
    data = b""
    while len(data) < count:
        chunk = os.read(fd, count - len(data))
        if not chunk:
            return None
        data += chunk
    return data
