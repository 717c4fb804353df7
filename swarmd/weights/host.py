"""A weight channel whose slots are bytes in host memory or on disk: header, slot 0, slot 1.

A version is copied in by the trainer and out by the reader, a megabyte at a time, summed while it is
in the cache. Where the medium is mapped, a reader can also use the bytes where they lie.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import ClassVar, Self

import msgspec
import numpy as np
import torch

from swarmd.errors import WeightChannelError
from swarmd.weights.ends import ChannelReader, ChannelWriter, OpenSlots
from swarmd.weights.header import Header, whole_pages
from swarmd.weights.layout import ALIGNMENT_BYTES, Layout, plan_layout
from swarmd.weights.medium import Medium, Octets

__all__ = ["HostReader", "HostWriter"]

_CHUNK_BYTES = 1 << 20


class HostWriter(ChannelWriter):
    """Copies into the medium that its subclass names."""

    medium: ClassVar[type[Medium]]

    @classmethod
    def create(cls, name: str, tensors: Mapping[str, torch.Tensor]) -> Self:
        """Make the channel `name` for tensors of these names, shapes and dtypes. Publishes nothing yet.

        What a trainer that is gone left under this name is taken over when it is for the same tensors:
        its last version stays readable until one is published, and no second room is needed. Else it
        is replaced, and its readers move on to the new one once something is published.

        Raises:
            WeightChannelError: the name is taken by a living process, or there is too little room.
        """
        layout = plan_layout(tensors)
        description = msgspec.msgpack.encode(layout)
        if (left := cls.medium.adopt(name)) is not None:
            with suppress(WeightChannelError):  # Not a channel of this version: replaced.
                header = Header.read(left)
                if header.is_whole and header.description == description:
                    return cls(left, header, layout)
            left.close()
        size = Header.size_bytes(description) + 2 * whole_pages(layout.slot_bytes)
        medium = cls.medium.create(name, size)
        return cls(medium, Header.make(medium, description), layout)

    def __init__(self, medium: Medium, header: Header, layout: Layout) -> None:
        super().__init__(medium, header, layout)
        self._slot_offsets = _slot_offsets(medium, header, layout)

    def _fill(self, slot: int, tensors: Mapping[str, torch.Tensor]) -> int:
        start = self._slot_offsets[slot]
        return sum(
            self._copy_in(tensors[place.name], start + place.offset_bytes) for place in self._layout.places
        )

    def _copy_in(self, tensor: torch.Tensor, offset: int) -> int:
        octets: Octets = tensor.detach().reshape(-1).cpu().view(torch.uint8).numpy()
        total = 0
        for start in range(0, len(octets), _CHUNK_BYTES):
            chunk = octets[start : start + _CHUNK_BYTES]
            self._medium.write(offset + start, chunk)
            total += _sum(chunk)
        return total


class HostReader(ChannelReader):
    """Copies out of the medium that its subclass names."""

    medium: ClassVar[type[Medium]]

    @classmethod
    def _open(cls, name: str) -> OpenSlots:
        medium = cls.medium.attach(name)
        try:
            header = Header.read(medium)
            return _HostSlots(medium, header, msgspec.msgpack.decode(header.description, type=Layout))
        except msgspec.MsgspecError as error:
            medium.close()
            raise WeightChannelError(
                f"{medium.noun} {medium.name} has no readable layout: {error}"
            ) from error
        except WeightChannelError:
            medium.close()
            raise


class _HostSlots(OpenSlots):
    def __init__(self, medium: Medium, header: Header, layout: Layout) -> None:
        super().__init__(medium, header, layout)
        self._slot_offsets = _slot_offsets(medium, header, layout)
        self._copied = np.empty(0, dtype=np.uint8)

    def copy_out(self, slot: int) -> tuple[torch.Tensor, int]:
        # The pages of a new buffer cost more than the copy: the last one serves again when only this
        # object and the call that counts still know it, so that no tensor is a view of it.
        if len(self._copied) != self.layout.slot_bytes or sys.getrefcount(self._copied) > 2:
            self._copied = np.empty(self.layout.slot_bytes, dtype=np.uint8)
        copied = self._copied
        total = 0
        for start in range(0, len(copied), _CHUNK_BYTES):
            chunk = copied[start : start + _CHUNK_BYTES]
            self.medium.read_into(self._slot_offsets[slot] + start, chunk)
            total += _sum(chunk)
        return torch.from_numpy(copied), total % 2**64

    def in_place(self, slot: int) -> tuple[torch.Tensor, int] | None:
        octets = self.medium.mapped(self._slot_offsets[slot], self.layout.slot_bytes)
        if octets is None:
            return None
        starts = range(0, len(octets), _CHUNK_BYTES)
        total = sum(_sum(octets[start : start + _CHUNK_BYTES]) for start in starts)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch has no read-only tensors.
            return torch.from_numpy(octets), total % 2**64


def _slot_offsets(medium: Medium, header: Header, layout: Layout) -> tuple[int, int]:
    slot = whole_pages(layout.slot_bytes)
    if header.payload_offset + 2 * slot != medium.size_bytes:
        raise WeightChannelError(f"{medium.noun} {medium.name} has the wrong length for its weights")
    return header.payload_offset, header.payload_offset + slot


def _sum(octets: Octets) -> int:
    """Sum of the 8-byte words, the tail padded with zeros."""
    whole = len(octets) // 8 * 8
    words = octets[:whole].view(np.uint64)
    return int(np.add.reduce(words, dtype=np.uint64)) + int.from_bytes(octets[whole:].tobytes(), "little")


assert _CHUNK_BYTES % ALIGNMENT_BYTES == 0
