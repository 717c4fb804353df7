"""What each process of a node takes of the machine: memory, open files, threads. Looked at every few
seconds in a thread, since a look costs some milliseconds and would hold up the loop.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import psutil

from swarmd.monitor.status import ProcessStatus

__all__ = ["DAEMON", "ProcessSizes", "measure"]

DAEMON = "daemon"
LOOK_SECONDS = 10.0


class ProcessSizes:
    """Keeps the newest look at the daemon and every process below it."""

    def __init__(self, worker_names: Callable[[], Mapping[int, str]]) -> None:
        """`worker_names` gives the workers' names by process id, as of now."""
        self.latest: tuple[ProcessStatus, ...] = ()
        self._worker_names = worker_names

    async def run(self) -> None:
        """Look, again and again. Never returns."""
        while True:
            names = {os.getpid(): DAEMON, **self._worker_names()}
            self.latest = await asyncio.to_thread(measure, names)
            await asyncio.sleep(LOOK_SECONDS)


def measure(names: Mapping[int, str]) -> tuple[ProcessStatus, ...]:
    """This process and all below it. `names` has some of them; what a named one started is NAME/PROGRAM,
    with #2 and so on where there are several, and anything else goes by its program: p2pd.
    """
    found: list[ProcessStatus] = []
    used: Counter[str] = Counter()
    for process, name in _named(psutil.Process(), names):
        used[name] += 1
        unique = name if used[name] == 1 else f"{name}#{used[name]}"
        try:
            with process.oneshot():
                resident_bytes, threads = process.memory_info().rss, process.num_threads()
            found.append(ProcessStatus(unique, process.pid, resident_bytes, _open_files(process), threads))
        except psutil.Error:  # It has ended meanwhile.
            continue
    return tuple(found)


def _named(root: psutil.Process, names: Mapping[int, str]) -> Iterator[tuple[psutil.Process, str]]:
    """Each process with a name; parents before their children, older ones first."""
    name_of = {root.pid: names.get(root.pid, DAEMON)}
    yield root, name_of[root.pid]
    for process in root.children(recursive=True):
        try:
            parent, program = process.ppid(), process.name()
        except psutil.Error:
            continue
        above = name_of.get(parent, "")
        inherited = program if above in ("", name_of[root.pid]) else f"{above}/{program}"
        name_of[process.pid] = names.get(process.pid, inherited)
        yield process, name_of[process.pid]


def _open_files(process: psutil.Process) -> int | None:
    """None where the kernel does not tell: a scorer gives up the right to be looked into."""
    try:
        return process.num_fds()
    except psutil.AccessDenied:
        return None
