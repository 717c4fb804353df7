"""Reputation: earned by valid groups, lost by what only a faulty or hostile peer sends."""

from pathlib import Path

import pytest
from swarmd_protocol.errors import Reason, Verdict

from swarmd.gossip import reputation as reputation_module
from swarmd.gossip.neighbourhood import UNSEEN
from swarmd.gossip.reputation import Reputation, ReputationSettings

SETTINGS = ReputationSettings(
    half_life_seconds=600,
    ignore_below=-20,
    close_below=-50,
    ignore_seconds=60,
    backoff_min_seconds=300,
    backoff_max_seconds=3_600,
    newcomer_groups=5,
)


class Setting:
    def __init__(self, places: dict[str, str | None] | None = None) -> None:
        self.now = 1_700_000_000.0
        self.places = places or {}
        self.reputation = self.again()

    def again(self) -> Reputation:
        return Reputation(SETTINGS, self.places.get, lambda: self.now)

    def reject(self, peer_id: str, times: int) -> None:
        for _ in range(times):
            self.reputation.note_refused(peer_id, Reason.MALFORMED)

    def accept(self, peer_id: str, times: int, useful: bool = True) -> None:
        for _ in range(times):
            self.reputation.note_valid(peer_id, useful)


def test_a_peer_below_the_first_threshold_is_ignored_for_a_while() -> None:
    setting = Setting()
    setting.reject("a", 20)
    assert setting.reputation.refusal("a") is None
    setting.reject("a", 1)
    assert setting.reputation.refusal("a") is Reason.IGNORED
    assert not setting.reputation.is_closed("a")
    assert setting.reputation.refusal("b") is None
    setting.now += 61
    assert setting.reputation.refusal("a") is None


def test_below_the_second_it_is_closed_and_longer_each_time() -> None:
    setting = Setting()
    for pause in (300, 600, 1_200, 2_400, 3_600, 3_600):
        setting.reject("a", 51)
        assert setting.reputation.is_closed("a")
        setting.now += pause - 1
        assert setting.reputation.is_closed("a")
        setting.now += 2
        assert not setting.reputation.is_closed("a")
    setting.now += 3_601
    setting.reject("a", 51)
    assert setting.reputation.view("a").seconds_left == 300


def test_good_deeds_weigh_up_but_cannot_be_saved_up_for_an_attack() -> None:
    setting = Setting()
    setting.accept("a", 10_000)
    setting.reject("a", 40)
    assert setting.reputation.refusal("a") is None
    setting.reject("a", 1)
    assert setting.reputation.refusal("a") is Reason.IGNORED


def test_faults_fade() -> None:
    setting = Setting()
    for _ in range(100):
        setting.reject("a", 1)
        setting.now += 60
    assert setting.reputation.refusal("a") is None
    assert -20 < setting.reputation.view("a").score < -5


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason.verdict is Verdict.IGNORE])
def test_what_an_honest_peer_may_send_never_makes_a_node_ignore_it(reason: Reason) -> None:
    setting = Setting()
    for _ in range(10_000):
        setting.reputation.note_refused("a", reason)
    setting.reject("a", 1)
    assert setting.reputation.refusal("a") is None


def test_the_three_measures_are_shares_of_what_was_counted() -> None:
    setting = Setting()
    view = setting.reputation.view("a")
    assert (view.state, view.validity, view.usefulness, view.agreement) == ("newcomer", None, None, None)
    setting.accept("a", 3)
    setting.accept("a", 1, useful=False)
    setting.reject("a", 1)
    setting.reputation.note_refused("a", Reason.VERSION_JUMP)
    view = setting.reputation.view("a")
    assert (view.validity, view.usefulness, view.agreement) == (0.8, 0.75, 0.8)


def test_a_new_key_is_a_newcomer_until_enough_of_its_groups_were_valid() -> None:
    setting = Setting()
    setting.accept("a", 4)
    assert setting.reputation.is_new("a")
    setting.accept("a", 1)
    assert not setting.reputation.is_new("a")
    assert setting.reputation.view("a").state == "member"


def test_new_keys_of_a_closed_peers_neighbourhood_are_not_let_in_and_members_there_are() -> None:
    setting = Setting({"a": "203.0.113.0/24", "new": "203.0.113.0/24", "member": "203.0.113.0/24"})
    setting.accept("member", 5)
    setting.reject("a", 51)
    assert setting.reputation.is_closed("new")
    assert not setting.reputation.is_closed("member")
    assert not setting.reputation.is_closed("from elsewhere")
    setting.now += 301
    assert not setting.reputation.is_closed("new")


@pytest.mark.parametrize("place", [None, UNSEEN])
def test_a_place_that_says_nothing_is_not_closed(place: str | None) -> None:
    setting = Setting({"a": place, "new": place})
    setting.reject("a", 51)
    assert not setting.reputation.is_closed("new")


def test_the_operators_word_outweighs_all_and_can_be_taken_back() -> None:
    setting = Setting()
    setting.accept("good", 100)
    setting.reputation.say("good", "banned")
    assert setting.reputation.is_closed("good")
    setting.reject("bad", 51)
    setting.reputation.say("bad", "allowed")
    setting.reject("bad", 500)
    assert setting.reputation.refusal("bad") is None
    assert not setting.reputation.is_new("bad")
    setting.reputation.say("good", "")
    setting.reputation.say("bad", "")
    assert setting.reputation.refusal("good") is None
    assert setting.reputation.is_new("bad")


def test_it_survives_a_restart(tmp_path: Path) -> None:
    setting = Setting({"closed": "203.0.113.0/24", "new": "203.0.113.0/24"})
    setting.accept("member", 5)
    setting.reject("closed", 51)
    setting.reputation.say("banned", "banned")
    setting.reputation.save(tmp_path / "reputation.json")
    later = setting.again()
    assert later.load(tmp_path / "reputation.json") is None
    assert not later.is_new("member")
    assert later.view("member").score == setting.reputation.view("member").score
    assert later.is_closed("closed")
    assert later.is_closed("new")
    assert later.view("banned").state == "banned"


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff", b'{"format":1,"peers":[{}]}'])
def test_a_damaged_file_is_told_and_left_out(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "reputation.json"
    path.write_bytes(damage)
    assert "cannot be read and begins anew" in str(Setting().reputation.load(path))


def test_a_newer_file_is_told_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "reputation.json"
    path.write_bytes(b'{"format":2,"peers":[],"neighbourhoods":{}}')
    assert "in format 2 of a newer swarmd" in str(Setting().reputation.load(path))
    assert Setting().reputation.load(tmp_path / "missing.json") is None


def test_the_memory_is_bounded_and_a_crowd_of_new_keys_displaces_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reputation_module, "MOST_PEERS", 10)
    setting = Setting()
    setting.accept("member", 5)
    setting.reputation.say("banned", "banned")
    for number in range(1_000):
        setting.reject(f"key {number}", 1)
    assert not setting.reputation.is_new("member")
    assert setting.reputation.is_closed("banned")
    assert len(setting.reputation._newcomers) == 9


def test_a_pause_written_under_a_clock_that_was_ahead_is_no_longer_than_the_longest(tmp_path: Path) -> None:
    ahead, later = Setting(), Setting()
    ahead.now += 10 * 365 * 86_400
    ahead.reject("a", 51)
    ahead.reputation.save(tmp_path / "reputation.json")
    assert later.reputation.load(tmp_path / "reputation.json") is None
    assert later.reputation.is_closed("a")
    later.now += SETTINGS.backoff_max_seconds + 1
    assert not later.reputation.is_closed("a")
