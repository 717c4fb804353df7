"""Whether the kernel has ended processes for want of memory. A process that is killed so cannot say it."""

from __future__ import annotations

from pathlib import Path

__all__ = ["memory_kills"]


def memory_kills(path: Path = Path("/proc/vmstat")) -> int:
    """How many since the machine started, in containers with a limit of their own included. 0: not known."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    counters = dict(line.split(maxsplit=1) for line in lines if " " in line)
    count = counters.get("oom_kill", "0")
    return int(count) if count.isdecimal() else 0
