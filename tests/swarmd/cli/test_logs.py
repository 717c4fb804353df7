"""`swarmd logs`: the end of the log, and following it through rotation."""

import os
from pathlib import Path

import pytest

from swarmd.cli.app import run_command_line
from swarmd.cli.logs import follow, last_lines


def test_last_lines_stop_before_a_line_that_is_still_being_written(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    path.write_bytes(b"one\ntwo\nthr")
    assert last_lines(path, 5) == (["one", "two"], 8)
    assert last_lines(path, 1) == (["two"], 8)
    assert last_lines(path, 0) == ([], 8)


def test_follow_joins_a_line_written_in_two_parts(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    path.write_bytes(b"one\nhal")
    lines = follow(path, 4, poll_seconds=0.001)
    with path.open("ab") as file:
        file.write(b"f\nnext\n")
    assert next(lines) == "half"
    assert next(lines) == "next"


def test_follow_goes_on_in_the_new_file_after_rotation(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    path.write_bytes(b"old\n")
    lines = follow(path, 0, poll_seconds=0.001)
    assert next(lines) == "old"
    path.rename(tmp_path / "node.log.1")
    path.write_bytes(b"new\n")
    assert next(lines) == "new"


def test_follow_starts_again_in_a_truncated_file(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    path.write_bytes(b"a long first line\n")
    lines = follow(path, 0, poll_seconds=0.001)
    assert next(lines) == "a long first line"
    os.truncate(path, 0)
    with path.open("ab") as file:
        file.write(b"new\n")
    assert next(lines) == "new"


def test_bytes_that_are_no_text_do_not_stop_the_log(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    path.write_bytes(b"\xff\xfe odd\nfine\n")
    assert last_lines(path, 2)[0][1] == "fine"


def test_home_without_a_log_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["logs", "--home", str(tmp_path)]) == 1
    assert "there is no log at" in capsys.readouterr().err
