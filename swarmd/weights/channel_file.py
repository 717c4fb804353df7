"""Bytes of a weight channel in a file.

They are written and read, not mapped: a disk that is full or fails is then an error that can be told,
where a mapped file would end the process.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from swarmd.errors import WeightChannelError
from swarmd.weights.medium import Medium, Octets, has_room

__all__ = ["ChannelFile"]


class ChannelFile(Medium):
    """An open file, named by its path."""

    noun = "weight file"

    def write(self, offset: int, octets: Octets) -> None:
        """Put `octets` at `offset`.

        Raises:
            WeightChannelError: the disk is full after all, or fails.
        """
        left = octets.data
        try:
            while left:
                written = os.pwrite(self._descriptor, left, offset)
                left, offset = left[written:], offset + written
        except OSError as error:
            raise WeightChannelError(f"cannot write {self.name}: {error.strerror}") from error

    def read_into(self, offset: int, target: Octets) -> None:
        """Fill `target` from `offset` on.

        Raises:
            WeightChannelError: the disk fails, or the file ends before.
        """
        left = target.data
        try:
            while left:
                count = os.preadv(self._descriptor, [left], offset)
                if not count:
                    raise WeightChannelError(f"{self.name} is torn: it ends at {offset} bytes")
                left, offset = left[count:], offset + count
        except OSError as error:
            raise WeightChannelError(f"cannot read {self.name}: {error.strerror}") from error

    @staticmethod
    def _open(name: str, flags: int) -> int:
        if flags & os.O_CREAT:
            Path(name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(name, flags | os.O_CLOEXEC, 0o600)

    @staticmethod
    def _unlink(name: str) -> None:
        os.unlink(name)

    @staticmethod
    def _free_bytes(name: str) -> int | None:
        folder = Path(name).parent
        while not folder.exists():
            folder = folder.parent
        return shutil.disk_usage(folder).free

    @classmethod
    def _no_room(cls, name: str, size_bytes: int, free: int | None) -> str:
        return (
            f"no room for the weights in {Path(name).parent}: {has_room(size_bytes, free)}; free some space"
        )
