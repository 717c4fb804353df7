"""A machine as far as models are concerned: its memory and its GPUs. Plain data, so that choices made
from it are tested without any GPU; `probe` describes the machine at hand.
"""

from __future__ import annotations

import msgspec

__all__ = ["Gpu", "Machine"]


class Gpu(msgspec.Struct, frozen=True):
    """One GPU that torch sees."""

    index: int
    """N of cuda:N, as torch counts here."""
    name: str
    capability: tuple[int, int]
    """Major and minor version of its instruction set."""
    total_bytes: int
    free_bytes: int
    has_bfloat16: bool
    """It computes in bfloat16 by itself, not by emulation."""
    fault: str = ""
    """What went wrong in a small computation on it, in one line. Empty: nothing."""

    @property
    def device(self) -> str:
        """Its name for torch."""
        return f"cuda:{self.index}"

    @property
    def has_float16(self) -> bool:
        """It is faster in float16 than in float32. Earlier ones (below 7.0) store it, and compute slowly."""
        return self.capability >= (7, 0)


class Machine(msgspec.Struct, frozen=True):
    """What there is to compute on."""

    memory_bytes: int
    """Of the machine, or what a container may use of it."""
    free_bytes: int
    """Of it, what a new process can have without swapping."""
    gpus: tuple[Gpu, ...] = ()
    gpu_fault: str = ""
    """Why GPUs that seem to be there cannot be asked. Empty: they could be, or there are none."""
    has_bfloat16: bool = False
    """The processor multiplies in bfloat16 by itself."""

    @property
    def working_gpus(self) -> tuple[Gpu, ...]:
        """Those that can compute, most free memory first."""
        working = [gpu for gpu in self.gpus if not gpu.fault]
        return tuple(sorted(working, key=lambda gpu: (-gpu.free_bytes, gpu.index)))
