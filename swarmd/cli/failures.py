"""How the command line says that something failed: one line on stderr."""

from __future__ import annotations

import sys

__all__ = ["report_failure"]


def report_failure(message: str, exit_code: int) -> int:
    """Print the message on one line of stderr and return the exit code."""
    line = " ".join(message.split())
    print(f"swarmd: {line}", file=sys.stderr, flush=True)
    return exit_code
