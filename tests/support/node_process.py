"""Real node processes: started as a user starts them, asked as a user asks them, and always ended."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

START_SECONDS = 120.0
"""Patience for a node to come up. These machines are slow and shared; a hang is what is looked for."""


@dataclass
class NodeProcess:
    """A node started by `swarmd start`."""

    home: Path
    arguments: list[str] = field(default_factory=list)
    model: str = "tiny"
    program: tuple[str, ...] = ("-m", "swarmd")
    """What Python runs to start it."""
    prefix: list[str] = field(default_factory=list)
    """What runs the command in surroundings of its own and becomes it: `ip netns exec NAME`, `env A=B`."""

    def start(self) -> "NodeProcess":
        """Start it; returns at once."""
        self.output = self.home.parent / f"{self.home.name}.out"
        with self.output.open("ab") as file:
            self.process = subprocess.Popen(
                [
                    *self.prefix,
                    *self.command("start"),
                    *("--model", self.model, "--engine", "transformers", "--set", "model.threads=1"),
                    *self.arguments,
                ],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        return self

    def command(self, *words: str) -> list[str]:
        """A command line about this node."""
        program = self.program if words[0] == "start" else ("-m", "swarmd")
        return [sys.executable, *program, *words, "--home", str(self.home)]

    def ask(self, *command: str) -> Any:
        """The JSON that a command prints about this node, None when it fails."""
        done = subprocess.run(self.command(*command, "--json"), capture_output=True, text=True, timeout=60)
        return json.loads(done.stdout) if done.returncode == 0 and done.stdout else None

    def wait_for(
        self, condition: Callable[[dict[str, Any]], bool], seconds: float = START_SECONDS
    ) -> dict[str, Any]:
        """The first status that meets a condition. Fails when the node ends or time is up."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            status = self.ask("status")
            if status is not None and condition(status):
                return dict(status)
            if self.process.poll() is not None and (status is None or not condition(status)):
                break
            time.sleep(0.3)
        pytest.fail(f"{self.home.name} did not get there: {self.printed()[-2000:]}")

    def wait_for_round(self, number: int, seconds: float = START_SECONDS) -> dict[str, Any]:
        """The first status at or after this round."""
        return self.wait_for(lambda status: status["round"] >= number, seconds)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, float]:
        """Send a signal; returns exit code and seconds until the end."""
        began = time.monotonic()
        self.process.send_signal(number)
        code = self.process.wait(timeout=60)
        return code, time.monotonic() - began

    def kill(self) -> None:
        """End it at once if it still runs."""
        process = getattr(self, "process", None)
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()

    def children(self) -> list[psutil.Process]:
        """All processes below the node."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def printed(self) -> str:
        """What it wrote to stdout and stderr so far."""
        return self.output.read_text(errors="replace")


def all_gone(processes: list[psutil.Process], seconds: float = 60.0) -> bool:
    """Whether all processes end within the time."""
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return all(process.status() == psutil.STATUS_ZOMBIE for process in alive if process.is_running())


def kill_and_wait_for_restarts(node: NodeProcess, *names: str) -> dict[str, Any]:
    """Kill workers at once. The status in which they are back, serve the newest weights, and train."""
    status = node.ask("status")
    for name in names:
        psutil.Process(status["workers"][name]["pid"]).kill()
    return node.wait_for(
        lambda now: (
            all(now["workers"][name]["restarts"] > status["workers"][name]["restarts"] for name in names)
            and all(worker["state"] == "ready" for worker in now["workers"].values())
            and now["weights"]["served_version"] == now["policy_version"] > 0
            and now["round"] >= status["round"] + 2
        )
    )


def kill_hard(node: NodeProcess) -> list[psutil.Process]:
    """SIGKILL the daemon. Returns what were its children."""
    children = node.children()
    node.process.kill()
    node.process.wait()
    return children
