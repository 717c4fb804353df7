"""Which device and number format a torch process computes with.

Chosen by what the machine can do, not by what it has: a GPU that is present but cannot run a
small computation is passed over under `auto`. `cpu` is always honoured. Every choice comes with a
note for the person who runs the node, empty when there is nothing to say.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from swarmd.errors import ConfigError

__all__ = ["Compute", "choose_compute", "choose_threads"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Compute:
    """A device, the number format to compute in, and what there is to say about the choice."""

    device: torch.device
    dtype: torch.dtype
    notes: tuple[str, ...] = ()

    @property
    def dtype_name(self) -> str:
        """float32, bfloat16 or float16."""
        return str(self.dtype).removeprefix("torch.")


def choose_compute(device: str, dtype: str) -> Compute:
    """Turn the settings `device` (auto, cpu, cuda, cuda:N) and `dtype` (auto, float32, ...) into a choice.

    Raises ConfigError when a device is named that does not exist or does not work.
    """
    chosen, notes = _choose_device(device)
    if dtype not in ("auto", *_DTYPES):
        raise ConfigError(f"model.dtype must be auto, {', '.join(_DTYPES)}, got {dtype!r}")
    fast_bfloat16 = chosen.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    if dtype == "auto":
        return Compute(chosen, torch.bfloat16 if fast_bfloat16 else torch.float32, notes)
    if dtype == "bfloat16" and chosen.type == "cuda" and not fast_bfloat16:
        return Compute(chosen, torch.float32, (*notes, f"{chosen} has no bfloat16; float32 is used"))
    return Compute(chosen, _DTYPES[dtype], notes)


def choose_threads(threads: int) -> int:
    """CPU threads of this process. 0: half the usable cores, since generator and trainer share them."""
    if threads > 0:
        return threads
    return max(1, len(os.sched_getaffinity(0)) // 2)


def _choose_device(requested: str) -> tuple[torch.device, tuple[str, ...]]:
    if requested == "cpu":
        return torch.device("cpu"), ()
    if requested == "auto":
        if not torch.cuda.is_available():
            return torch.device("cpu"), ()
        fault = _fault_of(torch.device("cuda"))
        if fault is None:
            return torch.device("cuda"), ()
        return torch.device("cpu"), (f"the GPU does not work ({fault}); the CPU is used",)
    try:
        device = torch.device(requested)
    except RuntimeError:
        raise ConfigError(f"model.device must be auto, cpu, cuda or cuda:N, got {requested!r}") from None
    fault = _fault_of(device)
    if fault is not None:
        raise ConfigError(f"model.device is {requested} but it does not work ({fault}); use auto or cpu")
    return device, ()


def _fault_of(device: torch.device) -> str | None:
    """What goes wrong in a small computation on `device`, in one line; None when it works."""
    try:
        ones = torch.ones(8, 8, device=device)
        if float((ones @ ones).sum()) != 512.0:
            return "wrong result of a small multiplication"
    except (RuntimeError, AssertionError) as error:
        return str(error).strip().splitlines()[0][:200]
    return None
