"""`swarmd peers`: verdicts counted by reason, and nothing of a peer's text reaches the terminal raw."""

import json
import time
from collections.abc import Callable
from subprocess import Popen

import pytest

from swarmd.cli.app import run_command_line
from swarmd.gossip.reputation import Reputation, ReputationSettings
from swarmd.paths import Home

StartNode = Callable[[str], "Popen[str]"]


def test_table_counts_what_was_accepted_and_rejected(
    node: StartNode, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    node("answers")
    assert run_command_line(["peers", "--home", str(home.folder)]) == 0
    header, first, second = capsys.readouterr().out.splitlines()
    columns = "peer name model round state score valid useful agrees accepted rejected screened last seen"
    assert header.split() == columns.split()
    assert "closed for 1 min 30 s  -3.5   97%" in first
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


PEER = "12D3KooWMepTrqqQ1WJbAAiP3hmXyebN4Z3aEeUk3tt578DkX8iz"


def test_a_word_on_a_peer_reaches_a_running_node(
    node: StartNode, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    node("answers")
    assert run_command_line(["peers", "ban", PEER, "--home", str(home.folder)]) == 0
    assert capsys.readouterr().out == f"{PEER} is told to ban\n"


def test_a_word_on_a_peer_is_kept_in_the_home_of_a_node_that_does_not_run(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    home.prepare()
    for word, state in (("ban", "banned"), ("allow", "allowed"), ("forget", "newcomer"), ("ban", "banned")):
        assert run_command_line(["peers", word, PEER, "--home", str(home.folder)]) == 0
        assert capsys.readouterr().out == f"{PEER} is {state}\n"
    reputation = Reputation(ReputationSettings(), lambda peer_id: None, time.time)
    assert reputation.load(home.reputation_file) is None
    assert reputation.is_closed(PEER)


def test_what_is_no_peer_id_is_wrong_usage(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    home.prepare()
    assert run_command_line(["peers", "ban", "elk", "--home", str(home.folder)]) == 2
    assert "is no peer id" in capsys.readouterr().err
    assert not home.reputation_file.exists()


def test_a_damaged_file_is_not_written_over(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    home.prepare()
    home.reputation_file.write_bytes(b"{")
    assert run_command_line(["peers", "ban", PEER, "--home", str(home.folder)]) == 1
    assert "remove the file to lose it" in capsys.readouterr().err
    assert home.reputation_file.read_bytes() == b"{"


def test_a_home_that_does_not_exist_is_not_made(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["peers", "ban", PEER, "--home", str(home.folder)]) == 1
    assert "does not exist" in capsys.readouterr().err
    assert not home.folder.exists()
