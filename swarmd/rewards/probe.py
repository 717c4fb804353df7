"""Tries the layers of the sandbox on this machine, by doing in a scoring child what they should refuse.

Run as a program, since closing cannot be undone. Prints a SandboxReport as JSON.
"""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable

import msgspec

from swarmd.errors import WorkerError
from swarmd.rewards.sandbox import Sandbox, close_process

PROBE_SECONDS = 20.0


class SandboxReport(msgspec.Struct, frozen=True):
    """What encloses scoring here."""

    layers: tuple[str, ...]
    missing: tuple[str, ...]
    """Each with the reason."""
    open_ways: tuple[str, ...]
    """What a scoring child could do all the same: some of network, files, processes. Should be empty."""


def probe_sandbox() -> SandboxReport:
    """Tries it in a process of its own. Raises WorkerError when that fails."""
    command = [sys.executable, "-m", "swarmd.rewards.probe"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=PROBE_SECONDS, check=True)
        return msgspec.json.decode(done.stdout, type=SandboxReport)
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
        raise WorkerError(f"the sandbox cannot be tried: {error}") from error


def main() -> None:
    """Closes this process, tries, and reports."""
    own_file = os.path.abspath(__file__)
    sandbox = close_process()
    ways: dict[str, Callable[[], object]] = {
        "network": socket.socket,
        "files": lambda: os.listdir("/"),
        "processes": os.fork,
        "own files": lambda: os.open(own_file, os.O_RDWR),
    }
    open_ways = tuple(name for name, way in ways.items() if not _is_refused(sandbox, way))
    report = SandboxReport(sandbox.layers, sandbox.missing, open_ways)
    sys.stdout.buffer.write(msgspec.json.encode(report))


def _is_refused(sandbox: Sandbox, way: Callable[[], object]) -> bool:
    """Whether a scoring child fails at it."""
    parent_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            # As in a real child, where the pipe for the results is number 3.
            os.dup2(2, 3)
            sandbox.close_child(100_000_000, 5, parent_pid)
            way()
            code = 1
        except OSError as error:
            code = 0 if error.errno in (errno.EPERM, errno.EACCES, errno.EMFILE, errno.EAGAIN) else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


if __name__ == "__main__":
    main()
