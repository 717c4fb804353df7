"""The two ends of a weight channel, whatever its slots are made of.

The kinds of channel say how tensors get into a slot and out of it; here is what makes it safe. A
reader can never return half an update, whenever writer or reader are killed, and a publication that
fails leaves the version before it in service.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple, Self

import torch

from swarmd.errors import SwarmdError, WeightChannelError
from swarmd.types import WeightHandle
from swarmd.weights.header import Header, Stamp
from swarmd.weights.layout import Layout, unpack
from swarmd.weights.medium import Medium

__all__ = ["ChannelReader", "ChannelWriter", "OpenSlots", "Published"]

_READ_DEADLINE_SECONDS = 30.0


class Published(NamedTuple):
    """Names one publication. Equal ones have the same content, whoever wrote them."""

    version: int
    checksum: int


class ChannelWriter(ABC):
    """The trainer's end. One writer for a name; `close` removes the channel."""

    kind: ClassVar[str]

    def __init__(self, medium: Medium, header: Header, layout: Layout) -> None:
        self._medium = medium
        self._header = header
        self._layout = layout

    @property
    def handle(self) -> WeightHandle:
        """What a reader needs to attach."""
        return WeightHandle(kind=self.kind, name=self._medium.name)

    def publish(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy `tensors` into the channel as `version`. They may be on any device.

        Readers see the previous version until the copy is complete.

        Raises:
            WeightChannelError: the tensors are not those the channel was made for, or it cannot be
                written; the previous version stays the current one.
        """
        self._layout.check(tensors)
        slot = self._header.begin(version)
        total = self._fill(slot, tensors)
        self._header.commit(slot, total % 2**64)

    def close(self) -> None:
        """Remove the channel. Readers keep what they have open."""
        self._medium.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def _fill(self, slot: int, tensors: Mapping[str, torch.Tensor]) -> int:
        """Copy all tensors to their places in a slot. Returns the sum of their 8-byte words."""


class OpenSlots(ABC):
    """A channel opened for reading."""

    def __init__(self, medium: Medium, header: Header, layout: Layout) -> None:
        self.medium = medium
        self.header = header
        self.layout = layout

    @abstractmethod
    def copy_out(self, slot: int) -> tuple[torch.Tensor, int]:
        """A private copy of the slot, flat uint8, and the sum of its 8-byte words modulo 2**64."""

    def in_place(self, slot: int) -> tuple[torch.Tensor, int] | None:
        """The slot's own bytes, read-only, and the sum of their 8-byte words modulo 2**64; None where they
        are not in the memory of this process. A writer may change them at any time.
        """
        return None

    def close(self) -> None:
        """Let go of it."""
        self.medium.close()


class ChannelReader(ABC):
    """The generator's end. Survives a restart of the trainer: it finds a new channel by its name."""

    kind: ClassVar[str]

    def __init__(self, handle: WeightHandle) -> None:
        self._handle = handle
        self._slots = self._open(handle.name)
        self._last_read: Published | None = None

    @classmethod
    def attach(cls, handle: WeightHandle) -> Self:
        """Open the channel that `handle` names.

        Raises:
            WeightChannelError: no such channel, one of another kind, or one that is not readable.
        """
        if handle.kind != cls.kind:
            raise WeightChannelError(f"cannot read weights of kind {handle.kind!r}, expected {cls.kind}")
        return cls(handle)

    @property
    def handle(self) -> WeightHandle:
        """The channel this reader is attached to."""
        return self._handle

    def latest_version(self) -> int | None:
        """Version of the newest complete weights; None before the first."""
        latest = self.latest()
        return None if latest is None else latest.version

    def latest(self) -> Published | None:
        """The newest complete weights, unread; None before the first."""
        self._follow_new_writer()
        current = self._slots.header.current()
        return None if current is None else Published(current[1].version, current[1].total)

    @property
    def last_read(self) -> Published | None:
        """What the last `read` or `lend` gave; None before the first."""
        return self._last_read

    def read(self) -> tuple[int, dict[str, torch.Tensor]]:
        """The newest complete weights, as (version, tensors by name), copied into own memory.

        Tensors of different names that were one tensor for the writer are one tensor here too.

        Raises:
            WeightChannelError: nothing is published yet, no consistent copy was possible in 30 s, or
                the channel cannot be read.
        """
        self._follow_new_writer()
        slots = self._slots
        deadline = time.monotonic() + _READ_DEADLINE_SECONDS
        while (current := slots.header.current()) is not None:
            slot, stamp = current
            octets, total = slots.copy_out(slot)
            if total == stamp.total and slots.header.stamp(slot) == stamp:
                self._last_read = Published(stamp.version, stamp.total)
                return stamp.version, unpack(slots.layout, octets)
            if time.monotonic() > deadline:
                raise WeightChannelError("the published weights do not match their checksum")
        raise WeightChannelError("no weights have been published yet")

    def lend(self, take: Callable[[Mapping[str, torch.Tensor]], None]) -> int:
        """Give the newest complete weights to `take`, which copies them, and return their version.

        Without a copy of its own where the slot is mapped. A writer may begin to overwrite that while
        `take` is at work: then it is called once more, with a copy. So what it took last is whole when
        this returns.

        Raises:
            WeightChannelError: as `read`; nothing has been taken.
            RuntimeError: half an update has been taken, and no whole one can be.
        """
        self._follow_new_writer()
        is_taken = False
        if (current := self._slots.header.current()) is not None:
            is_taken, is_whole = self._lend_in_place(*current, take)
            if is_whole:
                return current[1].version
        try:
            version, tensors = self.read()
            take(tensors)
        except SwarmdError as error:
            if not is_taken:
                raise
            raise RuntimeError(f"half an update was taken, and no whole one can be: {error}") from error
        return version

    def close(self) -> None:
        """Let go of the channel."""
        self._slots.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @classmethod
    @abstractmethod
    def _open(cls, name: str) -> OpenSlots:
        """Open the channel of this name. Raises WeightChannelError."""

    def _lend_in_place(
        self, slot: int, stamp: Stamp, take: Callable[[Mapping[str, torch.Tensor]], None]
    ) -> tuple[bool, bool]:
        """Whether `take` was called, and whether what it took was whole."""
        found = self._slots.in_place(slot)
        if found is None or found[1] != stamp.total:
            return False, False
        # A writer marks the slot before it changes a byte of it.
        try:
            take(unpack(self._slots.layout, found[0]))
        except SwarmdError:  # Refused, perhaps only for what was changed meanwhile.
            if self._slots.header.stamp(slot) == stamp:
                raise
            return False, False
        if self._slots.header.stamp(slot) != stamp:
            return True, False
        self._last_read = Published(stamp.version, stamp.total)
        return True, True

    def _follow_new_writer(self) -> None:
        if self._slots.medium.is_current:
            return
        try:
            newer = self._open(self._handle.name)
        except WeightChannelError:
            return  # The trainer is away or just creating it; the last weights stay readable.
        if newer.header.current() is None:
            newer.close()
            return
        self._slots.close()
        self._slots = newer
