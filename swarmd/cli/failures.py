"""How the command line says that something failed: one line on stderr."""

from __future__ import annotations

import contextlib
import sys

from swarmd.cli.columns import printable

__all__ = ["report_failure", "say"]


def say(line: str) -> None:
    """Print a line for a person on stderr. Where that is closed or full, nobody wants to know.

    It may quote a file or a peer: what could move a cursor or change a colour is not printed.
    """
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(f"swarmd: {printable(line)}", file=sys.stderr, flush=True)


def report_failure(message: str, exit_code: int) -> int:
    """Print the message on one line of stderr and return the exit code."""
    line = " ".join(message.split())
    say(line)
    return exit_code
