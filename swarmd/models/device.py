"""The device and number format that this torch process computes with, as they were chosen for it.

`placement` chooses for the whole node; a process that is started by itself, without a node around it,
chooses by the same rule. A device that does not work any more is refused, never replaced.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

import torch

from swarmd.errors import ConfigError
from swarmd.models.gpus import fault_of, read_gpus
from swarmd.models.machine import Machine
from swarmd.models.placement import DTYPE_BYTES, Wish, place

__all__ = ["Compute", "choose_compute", "choose_threads", "limit_memory"]


@dataclass(frozen=True)
class Compute:
    """A device and the number format to compute in."""

    device: torch.device
    dtype: torch.dtype

    @property
    def dtype_name(self) -> str:
        """float32, bfloat16 or float16."""
        return str(self.dtype).removeprefix("torch.")


def choose_compute(device: str, dtype: str) -> Compute:
    """Device (cpu, cuda:N; auto and cuda choose) and format (float32, ...; auto chooses) as torch has them.

    Raises ConfigError when a device is named that does not exist or does not work.
    """
    if dtype not in ("auto", *DTYPE_BYTES):
        raise ConfigError(f"model.dtype must be auto, {', '.join(DTYPE_BYTES)}, got {dtype!r}")
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise ConfigError(f"model.device must be auto, cpu, cuda or cuda:N, got {device!r}")
    if device in ("auto", "cuda") or (dtype == "auto" and device != "cpu"):
        wish = Wish("model.device", device)
        chosen = place(Machine(0, 0, read_gpus()), wish, wish, dtype, parameters=0).generator
        device, dtype = chosen.device, chosen.dtype
    named = torch.device(device)
    if named.type != "cpu" and (fault := fault_of(named)):
        raise ConfigError(f"model.device is {device} but it does not work ({fault}); use auto or cpu")
    return Compute(named, torch.float32 if dtype == "auto" else getattr(torch, dtype))


def choose_threads(threads: int) -> int:
    """CPU threads of this process. 0: half the usable cores, since generator and trainer share them."""
    if threads > 0:
        return threads
    return max(1, len(os.sched_getaffinity(0)) // 2)


def limit_memory(device: torch.device, share: float) -> None:
    """Bind this process to `share` of the memory of a GPU: beyond it torch runs out of memory, and what can
    be made smaller is made smaller, instead of taking what another process was promised. No effect on a CPU.
    """
    if device.type == "cuda" and share < 1:
        torch.cuda.set_per_process_memory_fraction(share, device)
