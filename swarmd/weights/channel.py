"""The way of the weights from the trainer to the generator: one interface, and which way is taken.

`shared_memory` copies through memory that both processes see, `file` through a file of the home,
`cuda_ipc` from one place of a GPU's memory to another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from swarmd.errors import WeightChannelError
from swarmd.types import WeightHandle
from swarmd.weights import cuda_ipc, file, shared_memory
from swarmd.weights.channel_file import ChannelFile
from swarmd.weights.ends import Published

__all__ = ["OpenedChannel", "Reader", "Writer", "attach", "create"]


class Writer(Protocol):
    """The trainer's end."""

    @property
    def handle(self) -> WeightHandle:
        """What a reader needs to attach."""

    def publish(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Make `tensors` the newest version, whole or not at all. Raises WeightChannelError."""

    def close(self) -> None:
        """Remove the channel."""


class Reader(Protocol):
    """The generator's end."""

    @property
    def handle(self) -> WeightHandle:
        """The channel it reads."""

    @property
    def last_read(self) -> Published | None:
        """What the last `read` or `lend` gave; None before the first."""

    def latest(self) -> Published | None:
        """The newest complete weights, unread; None before the first."""

    def read(self) -> tuple[int, dict[str, torch.Tensor]]:
        """The newest complete version and its tensors by name, which nobody else changes.

        Raises WeightChannelError.
        """

    def lend(self, take: Callable[[Mapping[str, torch.Tensor]], None]) -> int:
        """Give the newest complete weights to `take`, perhaps twice, and return their version. What it took
        last is whole.

        Raises WeightChannelError, or RuntimeError when `take` is left with half an update.
        """

    def close(self) -> None:
        """Let go of the channel."""


@dataclass(frozen=True)
class OpenedChannel:
    """The trainer's end of a channel, and how it was chosen."""

    writer: Writer
    reason: str
    """Why this kind, for status and log."""
    problem: str = ""
    """What a person should see to, where the best kind could not be had; else empty."""


def create(
    kind: str, name: str, folder: Path, tensors: Mapping[str, torch.Tensor], *, same_gpu: bool
) -> OpenedChannel:
    """Make a channel for `tensors`. Publishes nothing yet.

    `kind` is one of the three or auto: CUDA IPC when trainer and generator compute on the same GPU
    (`same_gpu`), else shared memory `name`, and where that is too small a file in `folder`.

    Raises:
        WeightChannelError: the kind asked for cannot be had; with auto, none can.
    """
    if kind == cuda_ipc.KIND and not same_gpu:
        raise WeightChannelError("weights.channel is cuda_ipc, but generator and trainer do not share a GPU")
    if kind != "auto":
        return OpenedChannel(_create(kind, name, folder, tensors), f"weights.channel is {kind}")
    reason, problem = "generator and trainer both see it, and it has room", ""
    if same_gpu:
        try:
            writer = _create(cuda_ipc.KIND, name, folder, tensors)
            return OpenedChannel(writer, "trainer and generator compute on the same GPU")
        except WeightChannelError as error:
            reason = str(error)
            problem = f"weights go through shared memory instead of the GPU's own: {error}"
    try:
        return OpenedChannel(_create(shared_memory.KIND, name, folder, tensors), reason, problem)
    except WeightChannelError as error:
        reason = str(error)
        problem = f"weights go through a file in {folder}, which is slower: {error}"
    try:
        return OpenedChannel(_create(file.KIND, name, folder, tensors), reason, problem)
    except WeightChannelError as error:
        raise WeightChannelError(f"{error} ({reason})") from error


def attach(handle: WeightHandle) -> Reader:
    """Open the channel that `handle` names, for reading.

    Raises:
        WeightChannelError: there is none, its kind is unknown, or it cannot be read here.
    """
    readers = {
        shared_memory.KIND: shared_memory.WeightReader.attach,
        file.KIND: file.FileReader.attach,
        cuda_ipc.KIND: cuda_ipc.CudaIpcReader.attach,
    }
    if handle.kind not in readers:
        raise WeightChannelError(f"cannot read weights of kind {handle.kind!r}")
    return readers[handle.kind](handle)


def _create(kind: str, name: str, folder: Path, tensors: Mapping[str, torch.Tensor]) -> Writer:
    # What a run that was killed has left; a file for the same tensors is taken over.
    cuda_ipc.remove_leftover(str(folder / cuda_ipc.KIND))
    if kind != file.KIND:
        ChannelFile.remove(str(folder / file.KIND))
    if kind == shared_memory.KIND:
        return shared_memory.WeightWriter.create(name, tensors)
    if kind == file.KIND:
        return file.FileWriter.create(str(folder / file.KIND), tensors)
    if kind == cuda_ipc.KIND:
        return cuda_ipc.CudaIpcWriter.create(str(folder / cuda_ipc.KIND), tensors)
    raise WeightChannelError(f"weights.channel must be auto, shared_memory, file or cuda_ipc, got {kind!r}")
