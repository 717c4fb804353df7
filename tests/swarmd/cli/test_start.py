"""`swarmd start` up to the point where the node takes over."""

from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import pytest

from swarmd.cli.app import run_command_line
from swarmd.paths import Home

StartNode = Callable[[str], "Popen[str]"]


def test_home_in_use_is_exit_3_naming_the_holder(
    node: StartNode, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    process = node("answers")
    for more in ([], ["--detach"]):
        assert run_command_line(["start", "--isolated", "--home", str(home.folder), *more]) == 3
        printed = capsys.readouterr().err
        assert f"in use by the node with process id {process.pid}" in printed
        assert len(printed.splitlines()) == 1


def test_home_that_cannot_be_written_is_exit_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    assert run_command_line(["start", "--isolated", "--home", str(tmp_path / "file" / "home")]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_folder_without_a_model_is_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model").mkdir()
    home = tmp_path / "home"
    code = run_command_line(["start", "--model", str(tmp_path / "model"), "--home", str(home)])
    assert code == 2
    assert str(tmp_path / "model") in capsys.readouterr().err
    assert not home.exists()


def test_a_bug_ends_as_one_line_with_its_traceback_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_node(config: object, home: Home, placement: object, **_: object) -> int:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("swarmd.node.run_node", run_node)
    assert run_command_line(["start", "--isolated", "--home", str(tmp_path)]) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("swarmd: the node stopped by a fault of its own (ZeroDivisionError: a bug)")
    assert not any("Traceback" in line for line in said)
    log = (tmp_path / "logs" / "node.log").read_text()
    assert "Traceback" in log
    assert 'raise ZeroDivisionError("a bug")' in log


def test_an_empty_home_is_exit_2_and_does_not_run_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command_line(["start", "--isolated", "--home", ""]) == 2
    assert capsys.readouterr().err.startswith("swarmd: --home is empty")
    assert list(tmp_path.iterdir()) == []


def test_vllm_that_is_not_there_is_exit_2_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarmd.cli.preflight.find_vllm", lambda: None)
    home = tmp_path / "home"
    assert run_command_line(["start", "--isolated", "--engine", "vllm", "--home", str(home)]) == 2
    assert "vLLM is not installed" in capsys.readouterr().err
    assert not home.exists()
