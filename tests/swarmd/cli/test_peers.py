"""`swarmd peers`: verdicts counted by reason, and nothing of a peer's text reaches the terminal raw."""

import json
from collections.abc import Callable
from subprocess import Popen

import pytest

from swarmd.cli.app import run_command_line
from swarmd.paths import Home

StartNode = Callable[[str], "Popen[str]"]


def test_table_counts_what_was_accepted_and_rejected(
    node: StartNode, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    node("answers")
    assert run_command_line(["peers", "--home", str(home.folder)]) == 0
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split() == ["peer", "name", "model", "round", "accepted", "rejected", "last", "seen"]
    assert first.split()[:1] == ["12D3KooWowl"]
    assert "140" in first
    assert "quota 5, stale 2" in first
    assert second.endswith("never")


def test_control_characters_in_a_peers_name_are_not_printed(
    node: StartNode, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    node("answers")
    run_command_line(["peers", "--home", str(home.folder)])
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "owl?[2J" in printed


def test_json_is_a_list_with_the_fields_of_the_contract(
    node: StartNode, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    node("answers")
    assert run_command_line(["peers", "--json", "--home", str(home.folder)]) == 0
    shown = json.loads(capsys.readouterr().out)
    contract = "peer_id name model round addresses accepted rejected last_seen_seconds"
    assert [peer["accepted"] for peer in shown] == [3, 140]
    assert set(contract.split()) <= set(shown[0])


def test_home_without_a_node_has_no_peers(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["peers", "--json", "--home", str(home.folder)]) == 0
    assert json.loads(capsys.readouterr().out) == []
