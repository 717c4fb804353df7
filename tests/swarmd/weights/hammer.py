"""Processes at one end of a weight channel, made to be killed. Started once, since it imports torch; for
each line `write|read KIND SEGMENT FOLDER` it forks one that does so for ever, and says `PID` when that
has done it a few times, or `failed`.

In version v every number is v, so half an update is seen at once.
"""

import os
import signal
import sys
import traceback
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from stand_in_gpu import use_stand_in

from swarmd.errors import SwarmdError
from swarmd.types import WeightHandle
from swarmd.weights import channel

SIZE = 50_000


def tensors_of(version: int) -> dict[str, torch.Tensor]:
    """Tied, as the bundled model is, and of several kinds."""
    embedding = torch.full((SIZE,), float(version))
    return {
        "embed": embedding,
        **{f"t{number}": torch.full((SIZE,), float(version)) for number in range(4)},
        "half": torch.full((3, SIZE // 10), float(version % 250), dtype=torch.bfloat16),
        "head": embedding,
    }


def write(kind: str, segment: str, folder: Path) -> None:
    tensors = tensors_of(0)
    opened = channel.create(kind, segment, folder, tensors, same_gpu=True)
    version = 0
    while True:
        version += 1
        opened.writer.publish(version, tensors_of(version))
        if version == 3:
            print(os.getpid(), flush=True)


def read(kind: str, segment: str, folder: Path) -> None:
    name = segment if kind == "shared_memory" else str(folder / kind)
    reader = channel.attach(WeightHandle(kind, name))
    count = 0
    while True:
        version, tensors = reader.read()
        for tensor in tensors.values():
            expected = version % 250 if tensor.dtype == torch.bfloat16 else version
            assert tensor.min() == tensor.max() == expected, (version, tensor)
        count += 1
        if count == 3:
            print(os.getpid(), flush=True)


def main() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Nobody waits for them.
    for line in sys.stdin:
        role, kind, segment, folder = line.split()
        if os.fork():
            continue
        try:
            use_stand_in(Path(folder))
            {"write": write, "read": read}[role](kind, segment, Path(folder))
        except (AssertionError, SwarmdError):
            traceback.print_exc()
            print("failed", flush=True)
            os._exit(1)


if __name__ == "__main__":
    main()
