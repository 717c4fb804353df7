"""Bytes that several processes see, with a name and one owner.

The owner holds a file lock on them, so bytes without a lock were left by a killed process, and the
next owner of that name takes them over or replaces them. All room is reserved when they are made, so
that writing into them cannot fail later, and nothing ever makes them shorter.
"""

from __future__ import annotations

import errno
import fcntl
import os
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from swarmd.errors import WeightChannelError

__all__ = ["Medium", "Octets", "has_room"]

Octets = npt.NDArray[np.uint8]
_NO_ROOM = (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EFBIG)
_CANNOT_LOCK = (errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ENOLCK)


class Medium(ABC):
    """Open bytes of a fixed size; writable only for the owner."""

    noun: ClassVar[str]
    """What a person calls it."""

    def __init__(self, name: str, descriptor: int, size_bytes: int, *, is_owner: bool) -> None:
        self.name = name
        self.size_bytes = size_bytes
        self._descriptor = descriptor
        self._is_owner = is_owner

    @classmethod
    def create(cls, name: str, size_bytes: int) -> Self:
        """Make `size_bytes` zero bytes, replacing a leftover of the same name.

        Raises:
            WeightChannelError: the name is in use by a living process, or there is too little room.
        """
        cls.remove(name)
        free = cls._free_bytes(name)
        if free is not None and free < size_bytes:
            raise WeightChannelError(cls._no_room(name, size_bytes, free))
        try:
            descriptor = cls._open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR)
        except OSError as error:
            raise WeightChannelError(f"cannot create {cls.noun} {name}: {error.strerror}") from error
        try:
            _lock(descriptor)
            os.ftruncate(descriptor, size_bytes)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, size_bytes)
            return cls(name, descriptor, size_bytes, is_owner=True)
        except OSError as error:
            with suppress(OSError):
                cls._unlink(name)
            os.close(descriptor)
            if error.errno in _NO_ROOM:
                raise WeightChannelError(cls._no_room(name, size_bytes, free)) from error
            raise WeightChannelError(f"cannot create {cls.noun} {name}: {error.strerror}") from error

    @classmethod
    def adopt(cls, name: str) -> Self | None:
        """Own what a process that is gone left under `name`, as it is; None when there is nothing.

        Raises:
            WeightChannelError: a living process owns it, or it belongs to another user.
        """
        descriptor = cls._open_existing(name, os.O_RDWR)
        if descriptor is None:
            return None
        try:
            _lock(descriptor)
            return cls(name, descriptor, os.fstat(descriptor).st_size, is_owner=True)
        except BlockingIOError as error:
            os.close(descriptor)
            raise WeightChannelError(f"{cls.noun} {name} is in use by another trainer") from error
        except (OSError, ValueError):  # ValueError: still empty, its owner ended while creating it.
            os.close(descriptor)
            cls.remove(name)
            return None

    @classmethod
    def attach(cls, name: str) -> Self:
        """Open for reading.

        Raises:
            WeightChannelError: there is nothing of this name, or it cannot be opened.
        """
        descriptor = cls._open_existing(name, os.O_RDONLY)
        if descriptor is None:
            raise WeightChannelError(f"no {cls.noun} named {name}: no trainer has made it")
        try:
            return cls(name, descriptor, os.fstat(descriptor).st_size, is_owner=False)
        except (OSError, ValueError) as error:  # ValueError: still empty, its owner is creating it.
            os.close(descriptor)
            raise WeightChannelError(f"cannot read {cls.noun} {name}: {error}") from error

    @classmethod
    def _open_existing(cls, name: str, flags: int) -> int | None:
        """A descriptor; None when there is nothing of this name. Raises WeightChannelError."""
        try:
            return cls._open(name, flags)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise WeightChannelError(f"cannot open {cls.noun} {name}: {error.strerror}") from error

    @classmethod
    def remove(cls, name: str) -> bool:
        """Remove what no living process owns. Returns whether there was something.

        Raises:
            WeightChannelError: a living process owns it, or it belongs to another user.
        """
        descriptor = cls._open_existing(name, os.O_RDWR)
        if descriptor is None:
            return False
        try:
            _lock(descriptor)
            cls._unlink(name)
        except BlockingIOError as error:
            raise WeightChannelError(f"{cls.noun} {name} is in use by another trainer") from error
        except FileNotFoundError:
            return False
        finally:
            os.close(descriptor)
        return True

    @classmethod
    def discard(cls, name: str) -> None:
        """Remove a name, also one in use: who has it open keeps the bytes. For an end in haste."""
        with suppress(OSError):
            cls._unlink(name)

    @property
    def is_current(self) -> bool:
        """Whether the name still leads here, not to newer bytes or to nothing."""
        try:
            descriptor = self._open(self.name, os.O_RDONLY)
        except OSError:
            return False
        try:
            return os.path.sameopenfile(descriptor, self._descriptor)
        finally:
            os.close(descriptor)

    @property
    def has_living_owner(self) -> bool:
        """Whether the process that made it, or one that took it over, is there. Not for the owner itself."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError as error:
            return error.errno in _CANNOT_LOCK
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        return False

    def close(self) -> None:
        """Let go of it; the owner also removes the name. Closing twice is allowed."""
        if self._descriptor < 0:
            return
        if self._is_owner and self.is_current:
            self._unlink(self.name)
        os.close(self._descriptor)
        self._descriptor = -1

    @abstractmethod
    def write(self, offset: int, octets: Octets) -> None:
        """Put `octets` at `offset`. Raises WeightChannelError when that is impossible."""

    @abstractmethod
    def read_into(self, offset: int, target: Octets) -> None:
        """Fill `target` from `offset` on. Raises WeightChannelError when that is impossible."""

    def mapped(self, offset: int, size_bytes: int) -> Octets | None:
        """The bytes themselves, read-only for a reader; None where they are not in this process's memory."""
        return None

    def read(self, offset: int, size_bytes: int) -> bytes:
        """A copy of `size_bytes` from `offset` on."""
        target = np.empty(size_bytes, dtype=np.uint8)
        self.read_into(offset, target)
        return target.tobytes()

    @staticmethod
    @abstractmethod
    def _open(name: str, flags: int) -> int:
        """A descriptor. Raises OSError."""

    @staticmethod
    @abstractmethod
    def _unlink(name: str) -> None:
        """Take the name away. Raises OSError."""

    @staticmethod
    @abstractmethod
    def _free_bytes(name: str) -> int | None:
        """Room where `name` would lie; None where it cannot be known."""

    @classmethod
    @abstractmethod
    def _no_room(cls, name: str, size_bytes: int, free: int | None) -> str:
        """The line for too little room: what was needed, what there is, what to do."""


def has_room(needed: int, free: int | None) -> str:
    """`needs 12 MB, 3 MB are free`, for a person."""
    known = "" if free is None else f", {_megabytes(free)} are free"
    return f"the weights need {_megabytes(needed)}{known}"


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.0f} MB" if size_bytes >= 10e6 else f"{size_bytes / 1e6:.1f} MB"


def _lock(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # Some systems cannot lock here; there the lock of the node's home is what protects it.
        if error.errno not in _CANNOT_LOCK:
            raise
