"""`swarmd config` as its readers see it."""

import json
from pathlib import Path

import pytest

from swarmd.cli.app import run_command_line
from swarmd.config_sources import known_keys


def test_show_json_has_every_key_with_value_and_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.toml").write_text("[replay]\nlocal_groups = 3\n")
    monkeypatch.setenv("SWARMD_NODE__NAME", "ada")
    code = run_command_line(
        ["config", "show", "--json", "--home", str(tmp_path), "--set", "swarm.listen=/ip4/127.0.0.1/tcp/0"]
    )
    rows = {row["key"]: row for row in json.loads(capsys.readouterr().out)}
    assert code == 0
    assert tuple(rows) == known_keys()
    assert rows["replay.local_groups"] == {
        "key": "replay.local_groups",
        "value": 3,
        "source": f"file {tmp_path / 'config.toml'}",
    }
    assert rows["node.name"]["source"] == "environment SWARMD_NODE__NAME"
    assert rows["swarm.listen"]["value"] == ["/ip4/127.0.0.1/tcp/0"]
    assert rows["node.seed"]["source"] == "default"


def test_show_without_terminal_is_one_line_per_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["config", "show", "--home", str(tmp_path), "--set", "node.seed=7"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(known_keys())
    assert "node.seed = 7  # --set" in lines
    assert 'model.name = "tiny"  # default' in lines


def test_check_says_that_a_right_configuration_is_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["config", "check", "--home", str(tmp_path), "--set", "node.seed=7"]) == 0
    assert capsys.readouterr().out.startswith("configuration is right (1 of ")


def test_check_finds_the_mistake_in_the_homes_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.toml").write_text("[replay]\nlocal_group = 3\n")
    assert run_command_line(["config", "check", "--home", str(tmp_path)]) == 2
    assert "did you mean 'replay.local_groups'?" in capsys.readouterr().err
