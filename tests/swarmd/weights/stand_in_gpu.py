"""CUDA IPC without a GPU: the calls that need one are replaced by memory that any process can map by its
path. What lies around them, from the encoding of the handles to the end of the owner, is the real thing.
"""

import os
import tempfile
from pathlib import Path

import torch

from swarmd.weights.cuda_ipc import CudaIpcReader, CudaIpcWriter, Gpu, SharedBuffer


class StandInGpu(Gpu):
    """Buffers are files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.counter = b"/none"
        self._folder = folder
        self._paths: dict[int, str] = {}

    def allocate(self, size_bytes: int, device: torch.device) -> torch.Tensor:
        descriptor, path = tempfile.mkstemp(dir=self._folder)
        os.ftruncate(descriptor, size_bytes)
        os.close(descriptor)
        octets = torch.from_file(path, shared=True, size=size_bytes, dtype=torch.uint8)
        self._paths[octets.data_ptr()] = path
        return octets

    def share(self, octets: torch.Tensor) -> SharedBuffer:
        path = self._paths[octets.data_ptr()].encode()
        return SharedBuffer("GPU-0", octets.numel(), path, octets.numel(), 0, self.counter, 0, b"", False)

    def open(self, buffer: SharedBuffer) -> torch.Tensor:
        path = buffer.memory.decode()
        return torch.from_file(path, shared=True, size=buffer.size_bytes, dtype=torch.uint8)

    def total(self, octets: torch.Tensor) -> int:
        return int(octets.view(torch.int64).sum()) % 2**64


def use_stand_in(folder: Path) -> None:
    """From now on the GPU of this process is the stand-in."""
    CudaIpcWriter.gpu = CudaIpcReader.gpu = StandInGpu(folder)
