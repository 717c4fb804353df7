"""Weights from the trainer to the generator through POSIX shared memory.

The segment holds two slots. A new version is written into the slot that is not current, and the
current slot is switched only when the copy is complete, so a reader always finds a whole version,
also when the writer is killed in the middle. A slot's sequence number is odd while it is written;
together with a sum over the slot's bytes it shows a reader that was overtaken that it must read
again. A reader can therefore never return half an update. Nothing waits for a lock.

Segment: one header page, the layout (MessagePack), slot 0, slot 1; all page-aligned.
"""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Mapping
from typing import NamedTuple, Self

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from swarmd.errors import WeightChannelError
from swarmd.types import WeightHandle
from swarmd.weights.layout import ALIGNMENT_BYTES, DTYPES, Layout, plan_layout
from swarmd.weights.segment import Segment

__all__ = ["KIND", "Published", "WeightReader", "WeightWriter"]

KIND = "shared_memory"

_MAGIC = b"swarmdW1"
_PAGE_BYTES = 4096
_FIXED = struct.Struct("<8sQQ")  # magic, bytes of the layout, bytes of a slot
_CURRENT = struct.Struct("<Q")  # 0: nothing published; 1 or 2: slot 0 or 1
_CURRENT_OFFSET = 64
_STAMP = struct.Struct("<QqQ")  # sequence, version, sum of the slot's words
_CHECK = struct.Struct("<I")  # checksum of the stamp
_STAMP_OFFSETS = (128, 192)
_CHUNK_BYTES = 1 << 20  # Copied and summed while it is in the cache.
_READ_DEADLINE_SECONDS = 30.0

_Words = npt.NDArray[np.uint64]


class WeightWriter:
    """The trainer's end. One writer for a name; `close` removes the segment."""

    def __init__(self, segment: Segment, layout: Layout, slot_offsets: tuple[int, int]) -> None:
        self._segment = segment
        self._layout = layout
        self._stamps = [_Stamp(0, 0, 0), _Stamp(0, 0, 0)]
        self._current = 0
        self._words_of_slots = [_words(segment, offset, layout.slot_bytes) for offset in slot_offsets]

    @classmethod
    def create(cls, name: str, tensors: Mapping[str, torch.Tensor]) -> WeightWriter:
        """Make the channel `name` for tensors of these names, shapes and dtypes. Publishes nothing yet.

        What a killed process left under this name is replaced; its readers move on to the new one
        once something is published.

        Raises:
            WeightChannelError: the name is taken by a living process, or shared memory is too small.
        """
        layout = plan_layout(tensors)
        encoded = msgspec.msgpack.encode(layout)
        slot_0 = _PAGE_BYTES + _whole_pages(len(encoded))
        slot_1 = slot_0 + _whole_pages(layout.slot_bytes)
        segment = Segment.create(name, slot_1 + _whole_pages(layout.slot_bytes))
        segment.memory[_PAGE_BYTES : _PAGE_BYTES + len(encoded)] = encoded
        # The magic comes last: a reader that sees it sees a complete layout.
        fixed = _FIXED.pack(_MAGIC, len(encoded), layout.slot_bytes)
        segment.memory[len(_MAGIC) : _FIXED.size] = fixed[len(_MAGIC) :]
        segment.memory[: len(_MAGIC)] = _MAGIC
        return cls(segment, layout, (slot_0, slot_1))

    @property
    def handle(self) -> WeightHandle:
        """What a reader needs to attach."""
        return WeightHandle(kind=KIND, name=self._segment.name)

    def publish(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy `tensors` into the channel as `version`. They may be on any device.

        Readers see the previous version until the copy is complete.

        Raises:
            WeightChannelError: the tensors are not those the channel was made for.
        """
        self._layout.check(tensors)
        slot = 1 if self._current == 1 else 0  # The one that is not current.
        sequence = self._stamps[slot].sequence
        # Odd while writing; it is odd already when an earlier copy into this slot failed.
        writing = _Stamp(sequence + 1 + sequence % 2, version, 0)
        self._write_stamp(slot, writing)
        total = 0
        words = self._words_of_slots[slot]
        for place in self._layout.places:
            first = place.offset_bytes // 8
            region = words[first : first + -(-place.size_bytes // 8)]
            total += _copy_in(tensors[place.name], region)
        self._write_stamp(slot, _Stamp(writing.sequence + 1, version, total % 2**64))
        _CURRENT.pack_into(self._segment.memory, _CURRENT_OFFSET, slot + 1)
        self._current = slot + 1

    def close(self) -> None:
        """Remove the channel. Readers keep what they have mapped."""
        self._words_of_slots.clear()
        self._segment.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_stamp(self, slot: int, stamp: _Stamp) -> None:
        self._stamps[slot] = stamp
        packed = _STAMP.pack(*stamp)
        offset = _STAMP_OFFSETS[slot]
        self._segment.memory[offset : offset + _STAMP.size + _CHECK.size] = packed + _CHECK.pack(
            zlib.crc32(packed)
        )


class Published(NamedTuple):
    """Names one publication. Equal ones have the same content, whoever wrote them."""

    version: int
    checksum: int


class WeightReader:
    """The generator's end. Survives a restart of the trainer: it finds the new segment by its name."""

    def __init__(self, handle: WeightHandle) -> None:
        self._handle = handle
        self._channel = _OpenChannel.open(handle.name)
        self._last_read: Published | None = None

    @classmethod
    def attach(cls, handle: WeightHandle) -> WeightReader:
        """Open the channel that `handle` names.

        Raises:
            WeightChannelError: no such channel, one of another kind, or one that is not readable.
        """
        if handle.kind != KIND:
            raise WeightChannelError(f"cannot read weights of kind {handle.kind!r}, expected {KIND}")
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
        current = self._channel.current()
        return None if current is None else Published(current[1].version, current[1].total)

    @property
    def last_read(self) -> Published | None:
        """What the last `read` returned; None before the first."""
        return self._last_read

    def read(self) -> tuple[int, dict[str, torch.Tensor]]:
        """The newest complete weights, as (version, tensors by name), copied into own CPU memory.

        Tensors of different names that were one tensor for the writer are one tensor here too.

        Raises:
            WeightChannelError: nothing is published yet, or no consistent copy was possible in 30 s.
        """
        self._follow_new_writer()
        deadline = time.monotonic() + _READ_DEADLINE_SECONDS
        while (current := self._channel.current()) is not None:
            slot, stamp = current
            copied, total = self._channel.copy_out(slot)
            if total == stamp.total and self._channel.stamp(slot) == stamp:
                self._last_read = Published(stamp.version, stamp.total)
                return stamp.version, _tensors(self._channel.layout, copied)
            if time.monotonic() > deadline:
                raise WeightChannelError("the published weights do not match their checksum")
        raise WeightChannelError("no weights have been published yet")

    def close(self) -> None:
        """Let go of the segment."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _follow_new_writer(self) -> None:
        if self._channel.segment.is_current:
            return
        try:
            newer = _OpenChannel.open(self._handle.name)
        except WeightChannelError:
            return  # The trainer is away or just creating it; the last weights stay readable.
        if newer.current() is None:
            newer.close()
            return
        self._channel.close()
        self._channel = newer


class _Stamp(NamedTuple):
    sequence: int
    version: int
    total: int


class _OpenChannel:
    """A mapped segment whose header has been checked."""

    def __init__(self, segment: Segment, layout: Layout, slot_offsets: tuple[int, int]) -> None:
        self.segment = segment
        self.layout = layout
        self._words_of_slots = [_words(segment, offset, layout.slot_bytes) for offset in slot_offsets]

    @classmethod
    def open(cls, name: str) -> _OpenChannel:
        segment = Segment.attach(name)
        try:
            layout, slot_offsets = _read_layout(segment)
        except WeightChannelError:
            segment.close()
            raise
        return cls(segment, layout, slot_offsets)

    def current(self) -> tuple[int, _Stamp] | None:
        """Slot and stamp of the newest complete version; None before the first."""
        deadline = time.monotonic() + _READ_DEADLINE_SECONDS
        while True:
            (current,) = _CURRENT.unpack_from(self.segment.memory, _CURRENT_OFFSET)
            if current == 0:
                return None
            stamp = self.stamp(current - 1)
            if stamp is not None and stamp.sequence % 2 == 0:
                return current - 1, stamp
            if time.monotonic() > deadline:
                raise WeightChannelError("the weight channel's header stays inconsistent")

    def stamp(self, slot: int) -> _Stamp | None:
        """The slot's stamp; None when it is being changed at this moment."""
        offset = _STAMP_OFFSETS[slot]
        packed = self.segment.memory[offset : offset + _STAMP.size + _CHECK.size]
        (checksum,) = _CHECK.unpack_from(packed, _STAMP.size)
        if zlib.crc32(packed[: _STAMP.size]) != checksum:
            return None
        return _Stamp(*_STAMP.unpack_from(packed))

    def copy_out(self, slot: int) -> tuple[_Words, int]:
        """A private copy of the slot and the sum of what was copied."""
        source = self._words_of_slots[slot]
        copied = np.empty_like(source)
        step = _CHUNK_BYTES // 8
        total = 0
        for start in range(0, len(source), step):
            copied[start : start + step] = source[start : start + step]
            total += _sum(copied[start : start + step])
        return copied, total % 2**64

    def close(self) -> None:
        self._words_of_slots.clear()
        self.segment.close()


def _read_layout(segment: Segment) -> tuple[Layout, tuple[int, int]]:
    size = len(segment.memory)
    if size < _PAGE_BYTES or segment.memory[: len(_MAGIC)] != _MAGIC:
        raise WeightChannelError(f"shared memory {segment.name} is not a weight channel of this version")
    _, layout_bytes, slot_bytes = _FIXED.unpack_from(segment.memory)
    slot_0 = _PAGE_BYTES + _whole_pages(layout_bytes)
    slot_1 = slot_0 + _whole_pages(slot_bytes)
    if slot_1 + _whole_pages(slot_bytes) != size:
        raise WeightChannelError(f"shared memory {segment.name} has the wrong length for its weights")
    try:
        layout = msgspec.msgpack.decode(segment.memory[_PAGE_BYTES : _PAGE_BYTES + layout_bytes], type=Layout)
    except msgspec.DecodeError as error:
        raise WeightChannelError(f"shared memory {segment.name} has no readable layout: {error}") from error
    return layout, (slot_0, slot_1)


def _words(segment: Segment, offset: int, size_bytes: int) -> _Words:
    return np.frombuffer(segment.memory, dtype=np.uint64, count=size_bytes // 8, offset=offset)


def _copy_in(tensor: torch.Tensor, region: _Words) -> int:
    """Copy a tensor into its place and return the sum of its 8-byte words (the tail padded with zeros)."""
    if not tensor.numel():
        return 0
    source = tensor.detach().reshape(-1)
    target = torch.frombuffer(region, dtype=source.dtype, count=source.numel())
    step = _CHUNK_BYTES // source.element_size()
    total = 0
    for start in range(0, source.numel(), step):
        target[start : start + step].copy_(source[start : start + step])
        first = start * source.element_size() // 8
        total += _sum(region[first : first + _CHUNK_BYTES // 8])
    return total


def _sum(words: _Words) -> int:
    return int(np.add.reduce(words, dtype=np.uint64))


def _tensors(layout: Layout, words: _Words) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for place in layout.places:
        dtype = DTYPES[place.dtype]
        count = place.size_bytes // dtype.itemsize
        if count:
            flat = torch.frombuffer(words, dtype=dtype, count=count, offset=place.offset_bytes)
            tensors[place.name] = flat.reshape(place.shape)
        else:
            tensors[place.name] = torch.empty(place.shape, dtype=dtype)
    return tensors | {name: tensors[stored_as] for name, stored_as in layout.aliases.items()}


def _whole_pages(size_bytes: int) -> int:
    return -(-size_bytes // _PAGE_BYTES) * _PAGE_BYTES


assert _CHUNK_BYTES % ALIGNMENT_BYTES == 0
