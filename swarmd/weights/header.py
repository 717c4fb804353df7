"""Which of a channel's two slots is current, what lies in each, and whether it is whole.

A new version goes into the slot that is not current, and the current slot is switched only when it is
complete, so a reader always finds a whole version, also when the writer is killed in the middle. A
slot's sequence number is odd while it is written; together with a sum over its words it shows a
reader that was overtaken that it must read again. Nothing waits for a lock.

Bytes: one page of header, then a description of the slots; both ends are at whole pages.
"""

from __future__ import annotations

import struct
import time
import zlib
from typing import NamedTuple

import numpy as np

from swarmd.errors import WeightChannelError
from swarmd.weights.medium import Medium

__all__ = ["PAGE_BYTES", "Header", "Stamp", "whole_pages"]

PAGE_BYTES = 4096
_MAGIC = b"swarmdW3"
_FIXED = struct.Struct("<8sQI")  # magic, bytes of the description, its checksum
_CURRENT = struct.Struct("<Q")  # 0: nothing published; 1 or 2: slot 0 or 1
_CURRENT_OFFSET = 64
_STAMP = struct.Struct("<QqQ")  # sequence, version, sum of the slot's words
_CHECK = struct.Struct("<I")  # checksum of the stamp
_STAMP_OFFSETS = (128, 192)
_DEADLINE_SECONDS = 30.0


class Stamp(NamedTuple):
    """What is in a slot."""

    sequence: int
    version: int
    total: int
    """Sum of the slot's 8-byte words, modulo 2**64."""


class Header:
    """The first bytes of a channel. One process writes it, any number read it."""

    def __init__(self, medium: Medium, description: bytes) -> None:
        self.description = description
        self.payload_offset = self.size_bytes(description)
        self._medium = medium

    @staticmethod
    def size_bytes(description: bytes) -> int:
        """Room for a header, and where the slots begin."""
        return PAGE_BYTES + whole_pages(len(description))

    @classmethod
    def make(cls, medium: Medium, description: bytes) -> Header:
        """Write a header in front of slots in which nothing is published."""
        header = cls(medium, description)
        header._put(PAGE_BYTES, description)
        for slot in range(2):
            header._stamp(slot, Stamp(0, 0, 0))
        header._put(_CURRENT_OFFSET, _CURRENT.pack(0))
        # The magic comes last: a reader that sees it sees a complete description.
        fixed = _FIXED.pack(_MAGIC, len(description), zlib.crc32(description))
        header._put(len(_MAGIC), fixed[len(_MAGIC) :])
        header._put(0, _MAGIC)
        return header

    @classmethod
    def read(cls, medium: Medium) -> Header:
        """Find the header of an open channel.

        Raises:
            WeightChannelError: there is none, or one of another version.
        """
        fixed = medium.read(0, _FIXED.size) if medium.size_bytes >= PAGE_BYTES else b""
        if fixed[: len(_MAGIC)] != _MAGIC:
            raise WeightChannelError(f"{medium.noun} {medium.name} is not a weight channel of this version")
        _, description_bytes, checksum = _FIXED.unpack(fixed)
        if PAGE_BYTES + whole_pages(description_bytes) > medium.size_bytes:
            raise WeightChannelError(f"{medium.noun} {medium.name} has the wrong length for its weights")
        description = medium.read(PAGE_BYTES, description_bytes)
        if zlib.crc32(description) != checksum:
            raise WeightChannelError(f"{medium.noun} {medium.name} has a damaged description of its weights")
        return cls(medium, description)

    @property
    def is_whole(self) -> bool:
        """Whether both stamps can be read: a writer killed between two bytes leaves one that cannot."""
        return all(self.stamp(slot) is not None for slot in range(2))

    def begin(self, version: int) -> int:
        """Mark the slot that is not current as being written, and return it. Only for the owner."""
        current = self.current()
        slot = 1 if current is not None and current[0] == 0 else 0
        before = self.stamp(slot)
        assert before is not None
        # Odd while writing; it is odd already when an earlier copy into this slot failed.
        self._stamp(slot, Stamp(before.sequence + 1 + before.sequence % 2, version, 0))
        return slot

    def commit(self, slot: int, total: int) -> None:
        """Make a slot that is complete the current one. Only for the owner."""
        writing = self.stamp(slot)
        assert writing is not None
        self._stamp(slot, Stamp(writing.sequence + 1, writing.version, total))
        self._put(_CURRENT_OFFSET, _CURRENT.pack(slot + 1))

    def current(self) -> tuple[int, Stamp] | None:
        """Slot and stamp of the newest complete version; None before the first."""
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while True:
            (current,) = _CURRENT.unpack(self._medium.read(_CURRENT_OFFSET, _CURRENT.size))
            if current == 0:
                return None
            if current > len(_STAMP_OFFSETS):
                raise WeightChannelError(f"the weight channel's header names slot {current} of 2")
            stamp = self.stamp(current - 1)
            if stamp is not None and stamp.sequence % 2 == 0:
                return current - 1, stamp
            if time.monotonic() > deadline:
                raise WeightChannelError("the weight channel's header stays inconsistent")

    def stamp(self, slot: int) -> Stamp | None:
        """The slot's stamp; None when it is being changed at this moment."""
        packed = self._medium.read(_STAMP_OFFSETS[slot], _STAMP.size + _CHECK.size)
        (checksum,) = _CHECK.unpack_from(packed, _STAMP.size)
        if zlib.crc32(packed[: _STAMP.size]) != checksum:
            return None
        return Stamp(*_STAMP.unpack_from(packed))

    def _stamp(self, slot: int, stamp: Stamp) -> None:
        packed = _STAMP.pack(*stamp)
        self._put(_STAMP_OFFSETS[slot], packed + _CHECK.pack(zlib.crc32(packed)))

    def _put(self, offset: int, data: bytes) -> None:
        self._medium.write(offset, np.frombuffer(data, dtype=np.uint8))


def whole_pages(size_bytes: int) -> int:
    """`size_bytes` rounded up to whole pages."""
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES
