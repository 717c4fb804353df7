"""What a node keeps over its runs, read by another version than the one that wrote it. The files in
`kept_by_0_1` were written by swarmd 0.1.
"""

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from swarmd.errors import CheckpointError
from swarmd.gossip.peers import load_known_peers, save_known_peers
from swarmd.gossip.reputation import Reputation, ReputationSettings
from swarmd.gossip.transport import KnownPeer
from swarmd.loops.state import SavedState
from swarmd.monitor.history import History, RoundRecord, read_rounds
from swarmd.monitor.status import load_last_known
from swarmd.training.checkpoint import CheckpointStore

KEPT = Path(__file__).parent / "kept_by_0_1"
PEER = "12D3KooWJ3rVxTqS4ZC5iMxKsuV1b6qcvKbDbVUQ2n9TgYF5fox1"
BANNED = PEER[:-1] + "2"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A copy, which the test may have written over."""
    return Path(shutil.copytree(KEPT, tmp_path / "kept"))


def reputation() -> Reputation:
    return Reputation(ReputationSettings(), lambda peer_id: None, lambda: 1_700_000_100.0)


def test_an_older_checkpoint_is_continued(kept: Path) -> None:
    found = CheckpointStore(kept / "checkpoints", 2).load_newest("m")
    assert found is not None
    checkpoint, _, notes = found
    assert (checkpoint.counters.round, checkpoint.counters.steps, notes) == (41, 300, ())
    assert checkpoint.weights["w"].tolist() == [0.0, 1.0, 2.0, 3.0]
    state = SavedState.decode(checkpoint.node_state)
    assert (state.round, state.source_position, state.own_reward_total) == (41, 330, 12.5)
    assert [saved.group.author for saved in state.groups] == [PEER]
    assert state.eval_reward is None


async def test_an_older_history_is_continued(kept: Path) -> None:
    async with History(kept / "history.sqlite", max_rounds=10) as history:
        await history.append(RoundRecord(round=42, ended_at=1.7e9, policy_version=41))
    old, new = read_rounds(kept / "history.sqlite")
    assert (old.round, old.own_reward, old.lag_groups) == (41, 0.5, (3, 1))
    assert new.round == 42


def test_older_knowledge_of_peers_is_taken_over_and_written_in_the_new_form(kept: Path) -> None:
    path = kept / "peers.json"
    peers, problem = load_known_peers(path)
    assert (peers, problem) == ((KnownPeer(PEER, ("/ip4/10.0.0.1/tcp/31337",)),), "")
    save_known_peers(path, peers, {})
    assert json.loads(path.read_bytes())["format"] == 1
    assert load_known_peers(path) == (peers, "")


def test_older_bans_and_merits_hold(kept: Path) -> None:
    loaded = reputation()
    assert loaded.load(kept / "reputation.json") is None
    assert loaded.is_closed(BANNED)
    assert loaded.view(PEER).state == "member"


def test_an_older_last_state_is_shown(kept: Path) -> None:
    known = load_last_known(kept / "status.json")
    assert known is not None
    assert (known.status.round, known.status.state, known.peers[0].accepted) == (41, "stopped", 3)


def newer(path: Path) -> bytes:
    """Make a JSON file one of a newer swarmd, whose fields may look like anything."""
    path.write_text('{"format": 2, "peers": {"by": "place"}, "files": 7, "novel": []}')
    return path.read_bytes()


@pytest.mark.parametrize("name", ["peers.json", "reputation.json"])
def test_what_a_newer_swarmd_knows_of_peers_is_set_aside_whole_and_said_in_a_line(
    kept: Path, name: str
) -> None:
    path = kept / name
    content = newer(path)
    load: dict[str, Callable[[Path], str | None]] = {
        "peers.json": lambda path: load_known_peers(path)[1],
        "reputation.json": reputation().load,
    }
    said = load[name](path)
    assert said is not None
    assert said.endswith(
        f"{name} is in format 2 of a newer swarmd, and this one reads up to 1: it is kept as {name}.newer, "
        "and begun anew"
    )
    assert (kept / f"{name}.newer").read_bytes() == content
    assert not path.exists()


def test_a_newer_checkpoint_is_refused_in_a_line_and_left_as_it_is(kept: Path) -> None:
    (checkpoint,) = (kept / "checkpoints").iterdir()
    content = newer(checkpoint / "manifest.json")
    with pytest.raises(CheckpointError, match="is in format 2 of a newer swarmd") as caught:
        CheckpointStore(kept / "checkpoints", 2).load_newest("m")
    assert "\n" not in str(caught.value)
    assert (checkpoint / "manifest.json").read_bytes() == content


async def test_a_newer_history_is_set_aside_whole(kept: Path) -> None:
    path = kept / "history.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 2")
    database.close()
    content = path.read_bytes()
    async with History(path, max_rounds=10) as history:
        await history.append(RoundRecord(round=1, ended_at=1.7e9, policy_version=0))
    (aside,) = kept.glob("history.sqlite.*.unreadable")  # noqa: ASYNC240
    assert aside.read_bytes() == content
    assert [record.round for record in read_rounds(path)] == [1]


def test_a_last_state_with_fields_of_a_newer_swarmd_is_shown_without_them(kept: Path) -> None:
    path = kept / "status.json"
    document = json.loads(path.read_bytes())
    document["status"]["mood"] = {"level": 3}
    path.write_text(json.dumps(document))
    known = load_last_known(path)
    assert known is not None
    assert known.status.round == 41
