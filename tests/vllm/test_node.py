"""A real node whose generator is vLLM: it learns, survives the death of vLLM's processes, and leaves
nothing behind.
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

PATIENCE_SECONDS = 400.0
"""For vLLM to start on a machine that is slow and shared; a hang is what is looked for."""


class Node:
    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.printed = folder / "printed"
        with self.printed.open("wb") as file:
            self.process = subprocess.Popen(
                [
                    *self.command("start"),
                    *("--model", "tiny", "--isolated", "--engine", "vllm", "--device", "cpu"),
                    *("--set", "model.threads=1", "--set", "workers.start_timeout_seconds=600"),
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
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            status = self.status()
            if status is not None and condition(status):
                return status
            time.sleep(1.0)
        log = self.home / "logs" / "generator.log"
        pytest.fail(self.printed.read_text()[-1500:] + (log.read_text()[-3000:] if log.exists() else ""))

    def generator(self) -> psutil.Process:
        for child in psutil.Process(self.process.pid).children():
            if "swarmd.entrypoints.generator" in child.cmdline():
                return child
        pytest.fail("the node has no generator process")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    if node.process.poll() is None:
        node.process.kill()
        node.process.wait()


def restarts_of_generator(status: Any) -> int:
    return int(status["workers"]["generator"]["restarts"])


def leftovers() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("psm_*")}


@pytest.mark.timeout(1500)
def test_node_learns_with_vllm_and_survives_the_death_of_its_processes(node: Node) -> None:
    before = leftovers()
    running = node.wait_for(lambda status: status["round"] >= 3)
    assert running["policy_version"] > 0

    # The process in the middle dies: the generator ends with it and is started again.
    generator = node.generator()
    family = [generator, *generator.children(recursive=True)]
    core = next(child for child in family[1:] if "EngineCore" in " ".join(child.cmdline()))
    core.kill()
    psutil.wait_procs(family, timeout=60)
    assert not any(process.is_running() for process in family)
    goes_on = node.wait_for(
        lambda status: restarts_of_generator(status) >= 1 and status["round"] >= running["round"] + 2
    )
    assert goes_on["state"] != "stopping"

    # Whatever ends the generator ends vLLM's processes too.
    generator = node.generator()
    family = [generator, *generator.children(recursive=True)]
    assert len(family) >= 3
    generator.kill()
    psutil.wait_procs(family, timeout=30)
    assert not any(process.is_running() for process in family)

    everything = psutil.Process(node.process.pid).children(recursive=True)
    node.process.send_signal(signal.SIGTERM)
    assert node.process.wait(timeout=60) == 0
    psutil.wait_procs(everything, timeout=10)
    assert not any(process.is_running() for process in everything)
    assert leftovers() <= before
    assert not list(Path("/dev/shm").glob(f"swarmd-{node.process.pid}*"))
