"""The GPUs that torch sees. Printed as JSON by `python -m swarmd.models.gpus`, for the daemon, which must
not import torch: `probe` runs it. So one CUDA context is made and given back before any model is loaded.
"""

from __future__ import annotations

import sys

import msgspec
import torch

from swarmd.models.machine import Gpu

__all__ = ["fault_of", "read_gpus"]


def read_gpus() -> tuple[Gpu, ...]:
    """Every GPU, tried with a small computation. Empty where torch has none or is built for CPUs only."""
    if not torch.cuda.is_available():
        return ()
    return tuple(_read_gpu(index) for index in range(torch.cuda.device_count()))


def fault_of(device: torch.device) -> str:
    """What goes wrong in a small computation on `device`, in one line; empty when it works."""
    try:
        ones = torch.ones(8, 8, device=device)
        if float((ones @ ones).sum()) != 512.0:
            return "wrong result of a small multiplication"
    except (RuntimeError, AssertionError) as error:
        return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    return ""


def _read_gpu(index: int) -> Gpu:
    device = torch.device("cuda", index)
    properties = torch.cuda.get_device_properties(device)
    fault = fault_of(device)
    free, total = (0, properties.total_memory) if fault else torch.cuda.mem_get_info(device)
    with torch.cuda.device(device):
        has_bfloat16 = not fault and torch.cuda.is_bf16_supported(including_emulation=False)
    return Gpu(
        index=index,
        name=properties.name,
        capability=(properties.major, properties.minor),
        total_bytes=total,
        free_bytes=free,
        has_bfloat16=has_bfloat16,
        fault=fault,
    )


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(read_gpus()).decode() + "\n")
