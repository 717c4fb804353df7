"""The weight channel in the memory of a GPU that trainer and generator share.

The two slots lie in the trainer's GPU memory; a small file in the home holds the header and what CUDA
needs to open them in another process. A version is copied from GPU memory to GPU memory, once by the
trainer and once by the reader, and checked as in the other channels: a reader that was overtaken
reads again, and what it returns is its own.

vLLM's built-in `ipc` backend is not used: it loads into the live model as it receives, so a version
that does not fit, or that is overwritten meanwhile, would leave mixed weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Self

import msgspec
import torch

from swarmd.errors import WeightChannelError
from swarmd.weights.channel_file import ChannelFile
from swarmd.weights.ends import ChannelReader, ChannelWriter, OpenSlots
from swarmd.weights.header import Header
from swarmd.weights.layout import Layout, plan_layout, unpack
from swarmd.weights.segment import Segment

__all__ = ["KIND", "CudaIpcReader", "CudaIpcWriter", "Gpu", "SharedBuffer", "remove_leftover"]

KIND = "cuda_ipc"


class SharedBuffer(msgspec.Struct, frozen=True):
    """What opens one buffer of GPU memory in another process: what torch's own reductions send."""

    gpu: str
    """UUID of the GPU: processes may count the same GPUs differently."""
    size_bytes: int
    memory: bytes
    storage_bytes: int
    offset_bytes: int
    counter: bytes
    counter_offset: int
    event: bytes
    needs_event: bool


class Gpu:
    """The calls that need a GPU."""

    def allocate(self, size_bytes: int, device: torch.device) -> torch.Tensor:
        """A flat uint8 tensor of zeros."""
        return torch.zeros(size_bytes, dtype=torch.uint8, device=device)

    def share(self, octets: torch.Tensor) -> SharedBuffer:
        """Make a buffer openable by other processes of this user."""
        storage: Any = octets.untyped_storage()
        _, memory, storage_bytes, offset, counter, counter_offset, event, needs_event = storage._share_cuda_()
        return SharedBuffer(
            gpu=str(torch.cuda.get_device_properties(octets.device).uuid),
            size_bytes=octets.numel(),
            memory=memory,
            storage_bytes=storage_bytes,
            offset_bytes=offset,
            counter=counter,
            counter_offset=counter_offset,
            event=event,
            needs_event=needs_event,
        )

    def open(self, buffer: SharedBuffer) -> torch.Tensor:
        """The buffer of another process, as a flat uint8 tensor."""
        here = {
            str(torch.cuda.get_device_properties(index).uuid): index
            for index in range(torch.cuda.device_count())
        }
        if buffer.gpu not in here:
            raise WeightChannelError(
                f"the trainer's GPU {buffer.gpu} is not visible to the generator: set weights.channel to "
                "shared_memory"
            )
        storage: Any = torch.UntypedStorage._new_shared_cuda(
            here[buffer.gpu],
            buffer.memory,
            buffer.storage_bytes,
            buffer.offset_bytes,
            buffer.counter,
            buffer.counter_offset,
            buffer.event,
            buffer.needs_event,
        )
        opened = torch.empty(0, dtype=torch.uint8, device=storage.device)
        return opened.set_(storage)[: buffer.size_bytes]

    def total(self, octets: torch.Tensor) -> int:
        """Sum of the buffer's 8-byte words modulo 2**64, once all that was asked of the GPU is done."""
        torch.cuda.synchronize(octets.device)
        return int(octets.view(torch.int64).sum()) % 2**64


class CudaIpcWriter(ChannelWriter):
    """The trainer's end: its slots are in the memory of the GPU that the tensors are on."""

    kind = KIND
    gpu = Gpu()

    def __init__(
        self, medium: ChannelFile, header: Header, layout: Layout, slots: list[torch.Tensor]
    ) -> None:
        super().__init__(medium, header, layout)
        self._slots = slots

    @classmethod
    def create(cls, name: str, tensors: Mapping[str, torch.Tensor]) -> Self:
        """Make the channel with the file `name`. Publishes nothing yet.

        Raises:
            WeightChannelError: the GPU has no room for two versions, or cannot share its memory.
        """
        layout = plan_layout(tensors)
        device = next(iter(tensors.values())).device
        remove_leftover(name)
        try:
            slots = [cls.gpu.allocate(layout.slot_bytes, device) for _ in range(2)]
            shared = (cls.gpu.share(slots[0]), cls.gpu.share(slots[1]))
        except (RuntimeError, AssertionError) as error:
            reason = str(error).strip().splitlines()[0]
            raise WeightChannelError(f"cannot share memory of {device} ({reason})") from error
        description = msgspec.msgpack.encode(_Description(layout, shared))
        medium = ChannelFile.create(name, Header.size_bytes(description))
        return cls(medium, Header.make(medium, description), layout, slots)

    def close(self) -> None:
        """Remove the channel."""
        super().close()
        self._slots.clear()

    def _fill(self, slot: int, tensors: Mapping[str, torch.Tensor]) -> int:
        octets = self._slots[slot]
        for name, target in unpack(self._layout, octets).items():
            if name not in self._layout.aliases:
                target.copy_(tensors[name].detach())
        return self.gpu.total(octets)


class CudaIpcReader(ChannelReader):
    """The generator's end: what it returns is in its own memory of the same GPU."""

    kind = KIND
    gpu = Gpu()

    @classmethod
    def _open(cls, name: str) -> OpenSlots:
        medium = ChannelFile.attach(name)
        try:
            header = Header.read(medium)
            description = msgspec.msgpack.decode(header.description, type=_Description)
            return _GpuSlots(medium, header, description, cls.gpu)
        except msgspec.MsgspecError as error:
            medium.close()
            raise WeightChannelError(f"{medium.noun} {medium.name} is not readable: {error}") from error
        except RuntimeError as error:
            medium.close()
            reason = str(error).strip().splitlines()[0]
            raise WeightChannelError(
                f"cannot open the trainer's GPU memory ({reason}): set weights.channel to shared_memory"
            ) from error
        except WeightChannelError:
            medium.close()
            raise


def remove_leftover(name: str) -> bool:
    """Remove the channel file of a trainer that is gone, and the counters that torch kept for it in
    shared memory. Returns whether there was one.

    Raises:
        WeightChannelError: a living process owns it.
    """
    if (left := ChannelFile.adopt(name)) is None:
        return False
    with suppress(WeightChannelError, msgspec.MsgspecError):
        for slot in msgspec.msgpack.decode(Header.read(left).description, type=_Description).slots:
            Segment.discard(slot.counter.decode().lstrip("/"))
    left.close()
    return True


class _Description(msgspec.Struct, frozen=True):
    layout: Layout
    slots: tuple[SharedBuffer, SharedBuffer]


class _GpuSlots(OpenSlots):
    def __init__(self, medium: ChannelFile, header: Header, description: _Description, gpu: Gpu) -> None:
        super().__init__(medium, header, description.layout)
        self._gpu = gpu
        self._require_owner()
        self._slots = [gpu.open(slot) for slot in description.slots]

    def copy_out(self, slot: int) -> tuple[torch.Tensor, int]:
        self._require_owner()
        octets = self._slots[slot].clone()
        return octets, self._gpu.total(octets)

    def close(self) -> None:
        self._slots.clear()
        super().close()

    def _require_owner(self) -> None:
        # What CUDA does with the memory of a process that is gone is not defined.
        if not self.medium.has_living_owner:
            raise WeightChannelError(
                "the trainer that published the weights is gone; its next start publishes anew"
            )
