"""Whether a person's terminal is there. What SIGHUP means hangs on it."""

from __future__ import annotations

import os


def has_terminal() -> bool:
    """Whether this process reads from or writes to a terminal.

    If so, SIGHUP says that the terminal is gone. A service has none, and is told by SIGHUP to reload.
    """
    return any(_is_terminal(descriptor) for descriptor in (0, 1, 2))


def _is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:  # Closed.
        return False
