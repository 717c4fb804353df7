"""What vLLM's processes have in the file system: a folder with sockets, shared memory and semaphores.

Once they have met, nobody needs the names any more, and `forget` removes them: what they name lives as long
as the processes do. All names begin with the generator's process id, so that what was killed before it
came to that is found by the next one.
"""

from __future__ import annotations

import contextlib
import multiprocessing.process
import multiprocessing.shared_memory
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["forget", "make_folder", "name_shared_things", "remove_leftovers"]

_PREFIX = "swarmd-vllm-"
_SHARED_MEMORY = Path("/dev/shm")
"""Where Linux shows shared memory and semaphores as files; elsewhere they cannot be listed."""


def make_folder() -> Path:
    """A new folder of this process for the time of vLLM's start."""
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))


def name_shared_things(folder: Path) -> None:
    """From now on, what this process and its children share gets names that begin with the folder's."""

    def make_name() -> str:
        return f"/{folder.name}-{secrets.token_hex(4)}"

    # Python has no public way to choose these names where others make the segments.
    multiprocessing.shared_memory._make_filename = make_name  # type: ignore[attr-defined]
    multiprocessing.process.current_process()._config["semprefix"] = f"/{folder.name}"  # type: ignore[attr-defined]


def forget(folder: Path) -> None:
    """Remove the folder and all names that begin with its own."""
    shutil.rmtree(folder, ignore_errors=True)
    for path in _shared(folder.name):
        with contextlib.suppress(OSError):
            path.unlink()


def remove_leftovers() -> None:
    """Forget what processes that are gone have left. What belongs to another user stays."""
    temporary = Path(tempfile.gettempdir())
    found = [path.name for path in (*temporary.glob(f"{_PREFIX}*"), *_shared(_PREFIX))]
    matches = [re.match(rf"(?:sem\.)?({_PREFIX}(\d+)-[^-]+)", name) for name in found]
    folders = {match[1]: int(match[2]) for match in matches if match is not None}
    for folder, pid in folders.items():
        if not _is_alive(pid):
            forget(temporary / folder)


def _shared(prefix: str) -> Iterator[Path]:
    if _SHARED_MEMORY.is_dir():
        yield from _SHARED_MEMORY.glob(f"{prefix}*")
        yield from _SHARED_MEMORY.glob(f"sem.{prefix}*")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
