"""`swarmd identity`: made once, shown, never overwritten."""

import json
from pathlib import Path

import pytest

from swarmd.cli.app import run_command_line
from swarmd.identity import Identity


def test_new_makes_the_key_that_show_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "home"
    assert run_command_line(["identity", "new", "--home", str(home)]) == 0
    peer_id = Identity.load(home / "identity.key").peer_id
    assert capsys.readouterr().out.startswith(f"{peer_id}  ")
    assert run_command_line(["identity", "show", "--json", "--home", str(home)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["peer_id"] == peer_id
    assert shown["file"] == str(home / "identity.key")


def test_new_leaves_an_identity_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["identity", "new", "--home", str(tmp_path)]) == 0
    before = (tmp_path / "identity.key").read_bytes()
    assert run_command_line(["identity", "new", "--home", str(tmp_path)]) == 3
    assert (tmp_path / "identity.key").read_bytes() == before
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("content", [b"", b"-----BEGIN PRIVATE KEY-----\n", b"\x00" * 10_000])
def test_foreign_file_is_one_line_exit_3_and_untouched(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "identity.key").write_bytes(content)
    for arguments in (["identity", "show"], ["start", "--model", "tiny", "--isolated"]):
        assert run_command_line([*arguments, "--home", str(tmp_path)]) == 3
        error = capsys.readouterr().err
        assert len(error.splitlines()) == 1
        assert str(tmp_path / "identity.key") in error
    assert (tmp_path / "identity.key").read_bytes() == content


def test_show_without_identity_says_how_to_make_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["identity", "show", "--home", str(tmp_path)]) == 3
    assert "swarmd identity new" in capsys.readouterr().err
