"""`swarmd stop` returns when the node has ended, whatever state it was in."""

from collections.abc import Callable
from subprocess import Popen

import pytest

from swarmd.cli.app import run_command_line
from swarmd.paths import Home

StartNode = Callable[[str], "Popen[str]"]


def test_stop_returns_after_the_node_has_ended(
    node: StartNode, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    process = node("answers")
    assert run_command_line(["stop", "--home", str(home.folder)]) == 0
    assert home.running_pid() is None
    assert process.wait(10) == 0
    assert f"stopped the node with process id {process.pid}" in capsys.readouterr().out


def test_node_that_does_not_answer_yet_is_stopped_by_signal(node: StartNode, home: Home) -> None:
    process = node("silent")
    assert run_command_line(["stop", "--home", str(home.folder)]) == 0
    assert process.wait(10) == 0


def test_node_that_does_not_end_is_a_failure_naming_it(
    node: StartNode, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    process = node("deaf")
    assert run_command_line(["stop", "--timeout", "0.2", "--home", str(home.folder)]) == 1
    assert f"process id {process.pid}" in capsys.readouterr().err
    assert process.poll() is None


def test_stopping_nothing_is_done_at_once(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["stop", "--home", str(home.folder)]) == 0
    assert "no node runs in" in capsys.readouterr().out
