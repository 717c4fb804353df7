"""What `swarmd doctor` finds of the machine itself, whatever the configuration."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import time
from importlib import metadata
from pathlib import Path

import swarmd
from swarmd.cli.findings import Finding
from swarmd.errors import WorkerError
from swarmd.gossip.clock_skew import SAID_FROM_SECONDS
from swarmd.models.probe import has_gpu_driver, probe_machine
from swarmd.rewards.probe import probe_sandbox
from swarmd.tasks.manifest import REASONING_GYM_VERSION

__all__ = ["clock", "disk", "gpu", "libraries", "memory", "python", "sandbox", "shared_memory"]

LITTLE_MEMORY_BYTES = 2_000_000_000
LITTLE_DISK_BYTES = 1_000_000_000
LITTLE_SHARED_BYTES = 256_000_000
_SHOWN = ("torch", "transformers", "hivemind", "reasoning-gym")
_REINSTALL = "install swarmd anew: pip install --force-reinstall swarmd"


def python() -> Finding:
    """The interpreter."""
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.platform != "linux":
        return Finding("python", "warning", f"{text}: scoring is enclosed by limits only", "use Linux")
    return Finding("python", "ok", text)


def libraries() -> list[Finding]:
    """Whether what swarmd was declared to need is installed, and which versions count most."""
    missing = sorted(name for name in _required() if _version(name) is None)
    if missing:
        return [Finding("libraries", "error", f"not installed: {', '.join(missing)}", _REINSTALL)]
    reasoning_gym = _version("reasoning-gym")
    if reasoning_gym != REASONING_GYM_VERSION:
        text = f"reasoning-gym {reasoning_gym} is installed, and tasks need {REASONING_GYM_VERSION}"
        remedy = f"pip install reasoning-gym=={REASONING_GYM_VERSION}"
        return [Finding("libraries", "error", text, remedy)]
    shown = ", ".join(f"{name} {_version(name)}" for name in _SHOWN)
    return [Finding("libraries", "ok", f"swarmd {swarmd.__version__}, {shown}")]


def gpu() -> Finding:
    """Whether a driver has left its device files; `start` tries the GPU itself."""
    return Finding("gpu", "ok", "a driver is there" if has_gpu_driver() else "no driver: the CPU is used")


def memory() -> Finding:
    """What a container or the machine still has."""
    machine = probe_machine(with_gpus=False)
    text = f"{machine.free_bytes / 1e9:.1f} of {machine.memory_bytes / 1e9:.1f} GB free"
    if machine.free_bytes < LITTLE_MEMORY_BYTES:
        return Finding("memory", "warning", text, "end other programs, or give the container more")
    return Finding("memory", "ok", text)


def shared_memory(folder: Path = Path("/dev/shm")) -> Finding:
    """Where the trainer's weights are handed to the generator."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        text = f"{folder}: {error.strerror or error}"
        return Finding("shared memory", "warning", text, "mount a tmpfs there")
    text = f"{usage.free / 1e9:.1f} of {usage.total / 1e9:.1f} GB free in {folder}"
    if usage.free < LITTLE_SHARED_BYTES:
        return Finding("shared memory", "warning", text, "in a container: give --shm-size=2g or more")
    return Finding("shared memory", "ok", text)


def disk(folder: Path) -> Finding:
    """Room for checkpoints and history."""
    existing = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    free = shutil.disk_usage(existing).free
    text = f"{free / 1e9:.1f} GB free for {folder}"
    if free < LITTLE_DISK_BYTES:
        return Finding("disk", "warning", text, "free some space, or choose another --home")
    return Finding("disk", "ok", text)


def clock(skew_seconds: float | None = None) -> Finding:
    """A clock that stands before this program was written is wrong; peers would ignore the node.

    `skew_seconds`: how far it was ahead of the peers', seen from the node when it last ran.
    """
    now, written = time.time(), Path(__file__).stat().st_mtime
    text = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < written - 86_400:
        remedy = "set it (NTP): peers ignore messages of a wrong time"
        return Finding("clock", "error", f"{text}, which is before swarmd was installed", remedy)
    if skew_seconds is not None and abs(skew_seconds) >= SAID_FROM_SECONDS:
        direction = "ahead of" if skew_seconds > 0 else "behind"
        seen = f"{text}; it was {abs(skew_seconds):.0f} s {direction} the peers' when the node last ran"
        return Finding("clock", "warning", seen, "set it (NTP)")
    return Finding("clock", "ok", text)


def sandbox() -> Finding:
    """The layers around scoring, tried."""
    try:
        report = probe_sandbox()
    except WorkerError as error:
        return Finding("sandbox", "error", str(error), _REINSTALL)
    text = f"active: {', '.join(report.layers)}"
    if report.missing:
        text += f"; missing: {', '.join(report.missing)}"
    if report.open_ways:
        text += f"; a scorer could reach: {', '.join(report.open_ways)}"
    if report.open_ways or not {"seccomp", "landlock"} <= set(report.layers):
        remedy = "install libseccomp2, and use a kernel with Landlock (5.13 or later)"
        return Finding("sandbox", "warning", text, remedy)
    return Finding("sandbox", "ok", text)


def _required() -> set[str]:
    """Distributions that swarmd needs on this platform, without its extras."""
    try:
        declared = metadata.requires("swarmd") or []
    except metadata.PackageNotFoundError:
        return set(_SHOWN)
    lines = [line for line in declared if "extra ==" not in line]
    if sys.platform != "linux":
        lines = [line for line in lines if "sys_platform" not in line]
    return {re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0] for line in lines}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
