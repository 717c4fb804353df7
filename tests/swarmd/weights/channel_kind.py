"""A weight channel of one kind, of the test's own, and other processes that have an end of it."""

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import torch

from swarmd.types import WeightHandle
from swarmd.weights import channel, shared_memory
from swarmd.weights.ends import ChannelReader, ChannelWriter


class Hammer:
    """See hammer.py."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("hammer.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, *words: str) -> psutil.Process:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(*words, file=self._process.stdin, flush=True)
        said = self._process.stdout.readline().strip()
        assert said.isdigit(), said
        return psutil.Process(int(said))

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@dataclass
class Kind:
    """One kind of channel, for one test."""

    name: str
    folder: Path
    segment: str
    hammer: Hammer
    processes: list[psutil.Process] = field(default_factory=list)

    @property
    def handle(self) -> WeightHandle:
        path = self.folder / self.name
        return WeightHandle(self.name, self.segment if self.name == shared_memory.KIND else str(path))

    def write(self, tensors: dict[str, torch.Tensor]) -> ChannelWriter:
        opened = channel.create(self.name, self.segment, self.folder, tensors, same_gpu=True)
        assert isinstance(opened.writer, ChannelWriter)
        return opened.writer

    def read(self) -> ChannelReader:
        reader = channel.attach(self.handle)
        assert isinstance(reader, ChannelReader)
        return reader

    def other_process(self, role: str) -> psutil.Process:
        """A process that publishes, or reads, for ever. Returns when it has done so a few times."""
        process = self.hammer.start(role, self.name, self.segment, str(self.folder))
        self.processes.append(process)
        return process


def kill(process: psutil.Process) -> None:
    """End it at once. It must be running."""
    process.kill()
    process.wait(60)
