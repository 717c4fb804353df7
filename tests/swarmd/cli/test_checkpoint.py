"""`swarmd checkpoint` prints where the checkpoint is, or why there is none."""

from collections.abc import Callable
from subprocess import Popen

import pytest

from swarmd.cli.app import run_command_line
from swarmd.paths import Home

StartNode = Callable[[str], "Popen[str]"]


def test_the_path_of_what_was_saved_is_printed(
    node: StartNode, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    node("answers")
    assert run_command_line(["checkpoint", "--home", str(home.folder)]) == 0
    assert capsys.readouterr().out == f"{home.checkpoints / 'checkpoint-60'}\n"


def test_a_checkpoint_that_fails_is_told_in_the_nodes_words(
    node: StartNode, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    node("answers")
    (home.folder / "disk is full").touch()
    assert run_command_line(["checkpoint", "--home", str(home.folder)]) == 1
    assert "no checkpoint as asked: the disk is full" in capsys.readouterr().err


def test_nothing_is_saved_where_no_node_runs(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["checkpoint", "--home", str(home.folder)]) == 1
    assert "no node runs in" in capsys.readouterr().err
