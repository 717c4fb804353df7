"""Why vLLM did not start, in its own words.

Its processes tell the generator only that one of them has failed. The reason is what the first of them logs;
the others' errors follow from it.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

__all__ = ["first_line", "keep_first_failure", "read_first_failure"]


def keep_first_failure(folder: Path) -> None:
    """From now on, write down the first error of this process in `folder`, unless another was first."""
    logging.getLogger("vllm").addHandler(_FirstFailure(folder / _FILE))


def read_first_failure(folder: Path) -> str:
    """In one line; empty when there is none."""
    path = folder / _FILE
    return path.read_text() if path.exists() else ""


def first_line(error: BaseException) -> str:
    """Of what it says, or its name."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


_FILE = "failure"


class _FirstFailure(logging.Handler):
    def __init__(self, path: Path) -> None:
        super().__init__(logging.ERROR)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            with contextlib.suppress(OSError):  # It is not the first, or the start is over.
                with self._path.open("x") as file:
                    file.write(first_line(error))
