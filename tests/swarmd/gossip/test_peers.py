from pathlib import Path

import msgspec
from swarmd_protocol.errors import Reason
from swarmd_protocol.messages import NodeRecordMessage

from swarmd.gossip.peers import PeerBook, load_known_peers, save_known_peers
from swarmd.gossip.reputation import Reputation, ReputationSettings
from swarmd.gossip.transport import KnownPeer


def record(name: str = "node", created_ms: int = 1, round_number: int = 7) -> NodeRecordMessage:
    return NodeRecordMessage(
        name=name,
        model="tiny",
        software="swarmd 1",
        round=round_number,
        policy_version=5,
        addresses=("/ip4/127.0.0.1/tcp/1",),
        created_ms=created_ms,
    )


def test_counts_are_kept_by_peer_and_in_all() -> None:
    book = PeerBook("own")
    book.note_accepted("a", useful=True)
    book.note_accepted("a", useful=True)
    book.note_rejected("a", Reason.MALFORMED)
    book.note_rejected("b", Reason.MALFORMED)
    book.note_rejected("b", Reason.MALFORMED)
    book.note_rejected("b", Reason.STALE)
    views = {view.peer_id: view for view in book.views(())}
    assert views["a"].accepted == 2
    assert views["a"].rejected == {"malformed": 1}
    assert views["b"].rejected == {"malformed": 2, "stale": 1}
    assert book.accepted == 2
    assert book.rejected == {"malformed": 3, "stale": 1}


def test_a_view_shows_what_the_record_says_and_how_long_ago_the_peer_was_heard_of() -> None:
    now = [100.0]
    book = PeerBook("own", clock=lambda: now[0])
    book.note_record("a", record())
    now[0] += 5
    (view,) = book.views(["a"])
    assert (view.name, view.model, view.round, view.policy_version) == ("node", "tiny", 7, 5)
    assert view.addresses == ("/ip4/127.0.0.1/tcp/1",)
    assert view.connected
    assert view.last_seen_seconds == 5


def test_an_older_record_does_not_replace_a_newer_one() -> None:
    book = PeerBook("own")
    book.note_record("a", record("new", created_ms=2))
    book.note_record("a", record("old", created_ms=1))
    assert book.views(())[0].name == "new"


def test_a_record_that_is_read_again_is_no_sign_of_life() -> None:
    now = [100.0]
    book = PeerBook("own", clock=lambda: now[0])
    book.note_record("a", record(created_ms=1))
    now[0] += 60
    book.note_record("a", record(created_ms=1))
    assert book.views(())[0].last_seen_seconds == 60
    book.note_record("a", record(created_ms=2))
    assert book.views(())[0].last_seen_seconds == 0


def test_connected_peers_come_first_and_a_peer_without_record_is_shown() -> None:
    now = [0.0]
    book = PeerBook("own", clock=lambda: now[0])
    book.note_connected(["a", "own"])
    now[0] += 1
    book.note_accepted("b", useful=True)
    views = book.views(["a"])
    assert [(view.peer_id, view.connected) for view in views] == [("a", True), ("b", False)]
    assert views[0].round is None


def test_the_peer_not_heard_of_for_longest_is_forgotten_first() -> None:
    book = PeerBook("own", most_peers=2)
    book.note_accepted("a", useful=True)
    book.note_accepted("b", useful=True)
    book.note_accepted("a", useful=True)
    book.note_accepted("c", useful=True)
    assert {view.peer_id for view in book.views(())} == {"a", "c"}
    assert book.accepted == 4


def test_peers_are_remembered_in_a_file_across_runs(tmp_path: Path) -> None:
    book = PeerBook("own")
    book.note_record("own", record())
    book.note_record("a", record())
    book.note_accepted("no address", useful=True)
    path = tmp_path / "peers.json"
    connected = {"b": ("/ip4/127.0.0.1/tcp/2",), "a": ("/ip4/127.0.0.1/tcp/3",), "c": ()}
    save_known_peers(path, book.known_peers(), connected)
    assert load_known_peers(path)[0] == (
        KnownPeer("b", ("/ip4/127.0.0.1/tcp/2",)),
        KnownPeer("a", ("/ip4/127.0.0.1/tcp/1",)),
    )
    assert [entry.name for entry in tmp_path.iterdir()] == ["peers.json"]


def test_only_the_newest_peers_are_remembered(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    save_known_peers(path, [KnownPeer(f"p{number}", ("/a",)) for number in range(1000)], {})
    remembered, _ = load_known_peers(path)
    assert len(remembered) == 128
    assert remembered[-1].peer_id == "p999"
    # Those who only connected give way first.
    crowd = {f"stranger {number}": ("/b",) for number in range(1000)}
    save_known_peers(path, [KnownPeer("p", ("/a",))], crowd)
    assert load_known_peers(path)[0][-1] == KnownPeer("p", ("/a",))


def test_a_missing_or_damaged_file_of_peers_remembers_nobody(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    assert load_known_peers(path) == ((), "")
    for damage in (b"", b"{", b"\xff\xfe", b'[{"peer_id": 3}]', msgspec.json.encode({"a": 1})):
        path.write_bytes(damage)
        assert load_known_peers(path) == ((), "")


def test_a_crowd_of_new_keys_displaces_itself_and_not_a_peer_with_accepted_groups() -> None:
    book = PeerBook("own", most_peers=5)
    book.note_accepted("honest", useful=True)
    for number in range(1_000):
        book.note_rejected(f"key {number}", Reason.MALFORMED)
    views = {view.peer_id: view for view in book.views(())}
    assert len(views) == 5
    assert views["honest"].accepted == 1


def test_what_nobody_is_known_to_have_done_is_counted_in_all_only() -> None:
    book = PeerBook("own")
    book.note_unattributed(Reason.DUPLICATE)
    assert book.rejected == {"duplicate": 1}
    assert book.views(()) == ()


def test_usefulness_is_the_share_of_groups_with_signal() -> None:
    book = PeerBook("self")
    assert book.usefulness("a") is None
    for useful in (True, False, False, False):
        book.note_accepted("a", useful=useful)
    assert book.usefulness("a") == 0.25
    kept = PeerBook("self", Reputation(ReputationSettings(), lambda peer: None, lambda: 0.0))
    assert kept.usefulness("a") is None
    for useful in (True, False):
        kept.note_accepted("a", useful=useful)
    assert kept.usefulness("a") == 0.5
