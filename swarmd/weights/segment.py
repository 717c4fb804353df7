"""A named piece of POSIX shared memory with one owner.

`multiprocessing.shared_memory` is not used: before Python 3.13 its resource tracker removes a
segment as soon as any process that opened it exits, readers included. Here only the owner removes
it. The owner holds a file lock on it, so a segment without a lock is a leftover of a killed
process, and the next owner of that name replaces it.
"""

from __future__ import annotations

import _posixshmem  # type: ignore[import-not-found, unused-ignore] # No stub in every mypy release.
import errno
import fcntl
import mmap
import os
import re
from contextlib import suppress
from pathlib import Path

from swarmd.errors import WeightChannelError

__all__ = ["CHANNEL_PREFIX", "Segment", "discard_segment", "remove_leftovers", "remove_segment"]

CHANNEL_PREFIX = "swarmd-"
"""A node's weight channel is named by this and the daemon's process id."""

_FOLDER = Path("/dev/shm")
"""Where Linux shows shared memory as files; elsewhere leftovers cannot be listed."""


class Segment:
    """An open segment. `memory` is the mapped bytes; writable only for the owner.

    Close it after every view into `memory` has been dropped.
    """

    def __init__(self, name: str, file_descriptor: int, memory: mmap.mmap, *, is_owner: bool) -> None:
        self.name = name
        self.memory = memory
        self._file_descriptor = file_descriptor
        self._is_owner = is_owner

    @classmethod
    def create(cls, name: str, size_bytes: int) -> Segment:
        """Make a segment of `size_bytes` zero bytes, replacing a leftover of the same name.

        All of its memory is reserved at once, so that writing into it cannot fail later.

        Raises:
            WeightChannelError: the name is in use by a living process, or there is too little room.
        """
        remove_segment(name)
        try:
            descriptor = _posixshmem.shm_open(_path(name), os.O_CREAT | os.O_EXCL | os.O_RDWR, mode=0o600)
        except OSError as error:
            raise WeightChannelError(f"cannot create shared memory {name}: {error.strerror}") from error
        try:
            _lock(descriptor)
            os.ftruncate(descriptor, size_bytes)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, size_bytes)
            memory = mmap.mmap(descriptor, size_bytes)
        except OSError as error:
            _posixshmem.shm_unlink(_path(name))
            os.close(descriptor)
            if error.errno in (errno.ENOSPC, errno.ENOMEM):
                raise WeightChannelError(
                    f"shared memory is too small: the weights need {size_bytes / 1e6:.0f} MB; free some "
                    "or enlarge /dev/shm (Docker: --shm-size)"
                ) from error
            raise WeightChannelError(f"cannot create shared memory {name}: {error.strerror}") from error
        return cls(name, descriptor, memory, is_owner=True)

    @classmethod
    def attach(cls, name: str) -> Segment:
        """Open an existing segment for reading.

        Raises:
            WeightChannelError: there is none of this name, or it cannot be opened.
        """
        try:
            descriptor = _posixshmem.shm_open(_path(name), os.O_RDONLY, mode=0)
        except FileNotFoundError as error:
            raise WeightChannelError(f"no shared memory named {name}: no trainer has made it") from error
        except OSError as error:
            raise WeightChannelError(f"cannot open shared memory {name}: {error.strerror}") from error
        try:
            memory = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
        except (OSError, ValueError) as error:  # ValueError: still empty, its owner is creating it.
            os.close(descriptor)
            raise WeightChannelError(f"cannot map shared memory {name}: {error}") from error
        return cls(name, descriptor, memory, is_owner=False)

    @property
    def is_current(self) -> bool:
        """Whether the name still leads to this segment, not to a newer one or to nothing."""
        try:
            descriptor = _posixshmem.shm_open(_path(self.name), os.O_RDONLY, mode=0)
        except OSError:
            return False
        try:
            return os.path.sameopenfile(descriptor, self._file_descriptor)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Unmap; the owner also removes the name. Closing twice is allowed."""
        if self._file_descriptor < 0:
            return
        if self._is_owner and self.is_current:
            _posixshmem.shm_unlink(_path(self.name))
        os.close(self._file_descriptor)
        self._file_descriptor = -1
        self.memory.close()


def remove_segment(name: str) -> bool:
    """Remove a segment that no living process owns. Returns whether there was one.

    Raises:
        WeightChannelError: a living process owns it, or it belongs to another user.
    """
    try:
        descriptor = _posixshmem.shm_open(_path(name), os.O_RDWR, mode=0)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise WeightChannelError(f"cannot open shared memory {name}: {error.strerror}") from error
    try:
        _lock(descriptor)
        _posixshmem.shm_unlink(_path(name))
    except BlockingIOError as error:
        raise WeightChannelError(f"shared memory {name} is in use by another trainer") from error
    except FileNotFoundError:
        return False
    finally:
        os.close(descriptor)
    return True


def discard_segment(name: str) -> None:
    """Remove a name, also one in use: who has it open keeps the memory until he ends. For an end in haste."""
    with suppress(OSError):
        _posixshmem.shm_unlink(_path(name))


def remove_leftovers(prefix: str) -> int:
    """Remove all segments named `prefix` and the id of a process that is gone. Returns how many.

    A process that was killed cannot do it itself. What another user or a living process owns stays.
    """
    removed = 0
    for path in _FOLDER.glob(f"{prefix}*") if _FOLDER.is_dir() else ():
        match = re.fullmatch(rf"{re.escape(prefix)}(\d+)", path.name)
        if match is not None and not _is_alive(int(match[1])):
            with suppress(WeightChannelError):
                removed += remove_segment(path.name)
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


def _lock(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # Some systems cannot lock shared memory; there the node's home lock is what protects it.
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL):
            raise
