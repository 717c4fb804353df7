"""A process is killed before each single operation that writing a checkpoint consists of. Whatever was
the last one, the next start finds a whole checkpoint: the new one, or the one before.
"""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from swarmd.training.checkpoint import CheckpointStore

pytestmark = pytest.mark.timeout(900)

# Saves checkpoint 2, and is killed by itself before the operation with the number given.
SAVE = """
import os, signal, sys
from pathlib import Path
import torch
from swarmd.training import checkpoint as module

left = int(sys.argv[2])

def counted(operation):
    def run(*arguments, **named):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return operation(*arguments, **named)
    return run

def checkpoint(number):
    counters = module.CheckpointCounters("m", number, number, number, 0)
    tensors = {"w": torch.full((1000,), float(number))}
    return module.Checkpoint(tensors, tensors, counters, b"%d" % number)

store = module.CheckpointStore(Path(sys.argv[1]), keep=1)
if left < 0:
    store.save(checkpoint(1))
    sys.exit()
module.save_file = counted(module.save_file)
module.shutil.rmtree = counted(module.shutil.rmtree)
os.fsync = counted(os.fsync)
os.open = counted(os.open)
for name in ("mkdir", "rename", "write_bytes"):
    setattr(Path, name, counted(getattr(Path, name)))
store.save(checkpoint(2))
"""


def save(folder: Path, operations: int) -> int:
    """Exit code of a process that may do so many operations."""
    return subprocess.run([sys.executable, "-c", SAVE, str(folder), str(operations)], timeout=120).returncode


def test_a_kill_before_any_operation_of_a_save_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    outcomes = []
    for operations in range(100):
        folder = tmp_path / str(operations)
        assert save(folder, -1) == 0
        code = save(folder, operations)
        found = CheckpointStore(folder, keep=1).load_newest("m")
        assert found is not None
        checkpoint, _, notes = found
        outcomes.append(checkpoint.counters.round)
        assert notes == ()
        assert checkpoint.node_state == b"%d" % checkpoint.counters.round
        assert checkpoint.weights["w"].tolist() == [checkpoint.counters.round] * 1000
        if code == 0:
            break
        assert code == -signal.SIGKILL
    # First the old one, from some operation on the new one, and never back.
    assert code == 0
    assert len(outcomes) > 12
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {1, 2}
