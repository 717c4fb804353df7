"""Files that say what a process is at."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def announced(state: str) -> Iterator[None]:
    """Shows the state while the block runs. A process that is killed leaves the file."""
    mark = Path(os.environ["ANNOUNCEMENTS"]) / state
    mark.touch()
    try:
        yield
    finally:
        mark.unlink(missing_ok=True)
