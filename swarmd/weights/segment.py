"""A named piece of POSIX shared memory.

`multiprocessing.shared_memory` is not used: before Python 3.13 its resource tracker removes a
segment as soon as any process that opened it exits, readers included. Here only the owner removes it.
"""

from __future__ import annotations

import _posixshmem  # type: ignore[import-not-found, unused-ignore] # No stub in every mypy release.
import mmap
import os
import re
import secrets
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np

from swarmd.errors import WeightChannelError
from swarmd.weights.medium import Medium, Octets, has_room

__all__ = ["SHARED_MEMORY_FOLDER", "Segment", "channel_name", "remove_leftovers"]

SHARED_MEMORY_FOLDER = Path("/dev/shm")
"""Where Linux shows shared memory as files; elsewhere leftovers cannot be listed."""
_PREFIX = "swarmd-"


class Segment(Medium):
    """An open segment, mapped. Close it after every view into it has been dropped."""

    noun = "shared memory"

    def __init__(self, name: str, descriptor: int, size_bytes: int, *, is_owner: bool) -> None:
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if is_owner else 0)
        self.memory = mmap.mmap(descriptor, size_bytes, prot=protection)
        self._octets = np.frombuffer(self.memory, dtype=np.uint8)
        super().__init__(name, descriptor, size_bytes, is_owner=is_owner)

    def write(self, offset: int, octets: Octets) -> None:
        """Put `octets` at `offset`."""
        np.copyto(self._octets[offset : offset + len(octets)], octets)

    def read_into(self, offset: int, target: Octets) -> None:
        """Fill `target` from `offset` on."""
        np.copyto(target, self._octets[offset : offset + len(target)])

    def mapped(self, offset: int, size_bytes: int) -> Octets:
        """The bytes themselves. Drop what is made of them before closing."""
        return self._octets[offset : offset + size_bytes]

    def close(self) -> None:
        """Unmap; the owner also removes the name. Closing twice is allowed."""
        super().close()
        self._octets = np.empty(0, dtype=np.uint8)
        self.memory.close()

    @staticmethod
    def _open(name: str, flags: int) -> int:
        return int(_posixshmem.shm_open(_path(name), flags, mode=0o600))

    @staticmethod
    def _unlink(name: str) -> None:
        _posixshmem.shm_unlink(_path(name))

    @staticmethod
    def _free_bytes(name: str) -> int | None:
        if sys.platform != "linux":
            return None
        try:
            found = os.statvfs(SHARED_MEMORY_FOLDER)
        except OSError:
            return None  # Creating it will say what is wrong.
        return found.f_bavail * found.f_frsize

    @classmethod
    def _no_room(cls, name: str, size_bytes: int, free: int | None) -> str:
        return (
            f"shared memory is too small: {has_room(size_bytes, free)}; enlarge /dev/shm (Docker: --shm-size)"
        )


def channel_name() -> str:
    """A name for the weight channel of the node whose daemon is this process. Containers that share
    /dev/shm count process ids each for itself: so the id alone would not do.
    """
    return f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"


def remove_leftovers() -> int:
    """Remove all segments named by `channel_name` in a process that is gone. Returns how many.

    A process that was killed cannot do it itself. What another user or a living process owns stays.
    """
    removed = 0
    for path in SHARED_MEMORY_FOLDER.glob(f"{_PREFIX}*") if SHARED_MEMORY_FOLDER.is_dir() else ():
        match = re.fullmatch(rf"{re.escape(_PREFIX)}(\d+)(-[0-9a-f]+)?", path.name)
        if match is not None and not _is_alive(int(match[1])):
            with suppress(WeightChannelError):
                removed += Segment.remove(path.name)
    return removed


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def _path(name: str) -> str:
    if not name or "/" in name or "\0" in name or name.startswith("."):
        raise WeightChannelError(f"{name!r} is not a name for shared memory")
    return f"/{name}"
