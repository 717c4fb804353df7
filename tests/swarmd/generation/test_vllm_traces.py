import os
import subprocess
import sys
from pathlib import Path

import pytest

from swarmd.generation import vllm_traces

LEAVES = """
import multiprocessing, multiprocessing.shared_memory, os, pathlib
from swarmd.generation import vllm_traces
folder = vllm_traces.make_folder()
vllm_traces.name_shared_things(folder)
memory = multiprocessing.shared_memory.SharedMemory(create=True, size=16)
lock = multiprocessing.get_context("spawn").Lock()
left = [path.name for path in pathlib.Path("/dev/shm").iterdir() if folder.name in path.name]
print(folder, *sorted(left), flush=True)
os.killpg(0, 9)
"""


def names(folder: Path) -> list[str]:
    shared = [path.name for path in Path("/dev/shm").iterdir() if folder.name in path.name]
    return sorted(shared) + ([folder.name] if folder.exists() else [])


@pytest.fixture
def killed() -> Path:
    """The folder of a process that was killed with all it had started."""
    process = subprocess.Popen(
        [sys.executable, "-c", LEAVES], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    folder, semaphore, memory = process.communicate(timeout=60)[0].split()
    assert semaphore.startswith(f"sem.{Path(folder).name}-")
    assert memory.startswith(f"{Path(folder).name}-")
    return Path(folder)


def test_what_a_killed_process_left_is_removed(killed: Path) -> None:
    vllm_traces.remove_leftovers()
    assert names(killed) == []


def test_what_a_living_process_uses_stays_until_it_is_forgotten(killed: Path) -> None:
    folder = vllm_traces.make_folder()
    (folder / "socket").touch()
    shared = Path("/dev/shm") / f"{folder.name}-1"
    shared.touch()
    vllm_traces.remove_leftovers()
    assert names(folder) == [shared.name, folder.name]
    vllm_traces.forget(folder)
    assert names(folder) == []
    assert str(os.getpid()) in folder.name
