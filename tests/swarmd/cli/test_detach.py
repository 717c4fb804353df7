"""`--detach`: the command returns when the node answers, or with the node's own error."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from swarmd.paths import Home

PROGRAM = """
import os, sys, time
from pathlib import Path
from swarmd.cli.detach import detach
from swarmd.errors import ConfigError
from swarmd.paths import Home

home = Home(Path(sys.argv[1]))
home.prepare()

def runs() -> int:
    with home.lock():
        home.control_socket.touch()
        print("up")
        time.sleep(60)
    return 0

def refuses() -> int:
    raise ConfigError("port 1 is taken")

def crashes() -> int:
    os.kill(os.getpid(), 9)
    return 0

print("exit code", detach(home, {"runs": runs, "refuses": refuses, "crashes": crashes}[sys.argv[2]]))
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def started(home: Home, what: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(home.folder), what],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_node_goes_on_in_its_own_session_after_the_command_returned(home: Home) -> None:
    done = started(home, "runs")
    pid = home.running_pid()
    assert pid is not None
    try:
        assert "exit code 0" in done.stdout
        assert f"process id {pid}" in done.stdout
        assert os.getsid(pid) == pid
        assert (home.logs / "start.log").exists()
    finally:
        os.kill(pid, signal.SIGKILL)


def test_error_of_the_node_is_the_error_of_the_command(home: Home) -> None:
    done = started(home, "refuses")
    assert "exit code 2" in done.stdout
    assert done.stderr == "swarmd: port 1 is taken\n"


def test_node_that_is_killed_at_start_is_a_failure(home: Home) -> None:
    done = started(home, "crashes")
    assert "exit code 1" in done.stdout
    assert len(done.stderr.splitlines()) == 1


def test_socket_left_by_a_killed_run_is_not_taken_for_an_answer(home: Home) -> None:
    home.prepare()
    home.runtime.mkdir()
    home.control_socket.touch()
    assert "exit code 2" in started(home, "refuses").stdout
