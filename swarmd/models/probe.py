"""Describes the machine at hand. Needs no torch in this process: GPUs are read by a short one of their own,
and only where a driver has left its device files.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil

from swarmd.models.machine import Gpu, Machine

__all__ = ["container_memory", "has_gpu_driver", "probe_machine"]

GPU_SECONDS = 60.0
"""Importing torch and opening the driver takes a few; longer, and the driver hangs."""
_DRIVER_FILES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd", "/dev/dxg")


def probe_machine(*, with_gpus: bool) -> Machine:
    """The machine as it is now. Without `with_gpus` none is looked for, which can save seconds."""
    memory = psutil.virtual_memory()
    total, free = int(memory.total), int(memory.available)
    limit = container_memory()
    if limit is not None and limit[0] < total:
        total, free = limit[0], min(free, limit[1])
    gpus, fault = _gpus() if with_gpus and has_gpu_driver() else ((), "")
    return Machine(total, free, gpus, fault, _cpu_has_bfloat16())


def has_gpu_driver() -> bool:
    """Whether there may be a GPU."""
    return any(Path(path).exists() for path in _DRIVER_FILES)


def container_memory(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> tuple[int, int] | None:
    """What the control groups of this process let it use, and what of that is free, in bytes; None when
    nothing limits it. The cache of files counts as free, since the kernel gives it up.
    """
    limits = []
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        base = root / controllers
        # In a container the group's own path may not exist; its limit then stands at the top.
        folder = base / group.strip("/")
        while True:
            if (limit := _group_limit(folder)) is not None:
                limits.append(limit)
            if folder == base:
                break
            folder = folder.parent
    return min(limits, key=lambda limit: limit[1], default=None)


def _group_limit(folder: Path) -> tuple[int, int] | None:
    """Limit and free bytes of one control group, of version 2 or 1."""
    for limit, use, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            limit_bytes = int((folder / limit).read_text())  # "max" where there is none.
            used_bytes = int((folder / use).read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        return limit_bytes, max(0, limit_bytes - used_bytes + int(stat.get(cache, 0)))
    return None


def _gpus() -> tuple[tuple[Gpu, ...], str]:
    """The GPUs, or why they cannot be read."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "swarmd.models.gpus"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=GPU_SECONDS,
            check=False,
            env=os.environ | {"PYTHONWARNINGS": "ignore"},
        )
    except subprocess.TimeoutExpired:
        return (), f"the driver did not answer within {GPU_SECONDS:g} s"
    lines, complaints = done.stdout.splitlines(), done.stderr.strip().splitlines()
    if done.returncode == 0 and lines:
        gpus = msgspec.json.decode(lines[-1], type=tuple[Gpu, ...])
        return gpus, "" if gpus else "torch sees none; is it built for this driver?"
    return (), complaints[-1][:200] if complaints else f"reading them ended with exit code {done.returncode}"


def _cpu_has_bfloat16() -> bool:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    flags = next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), "")
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags.split())
