"""The door: refusals are booked on whom they belong to, before anything in a message is read."""

import pytest

from swarmd.gossip.door import PeerDoor, RequestDoor
from swarmd.gossip.neighbourhood import Neighbourhoods
from swarmd.gossip.peers import PeerBook
from swarmd.gossip.reputation import Reputation, ReputationSettings
from swarmd.gossip.seen import ReplayWindow
from swarmd.gossip.shares import PeerShares, Share
from swarmd.gossip.subscription import Received, Subscription

SHARE = Share(10, 1_000, 0.5, 2, 0.5, 3)
SETTINGS = ReputationSettings(600, -20, -50, 60, 300, 86_400, 20)


class Setting:
    def __init__(self) -> None:
        self.now = 1_000.0
        places = Neighbourhoods(("127.0.0.0/8",))
        places.note_connected(dict.fromkeys(("a", "b"), ("/ip4/127.0.0.1/tcp/1",)))
        self.reputation = Reputation(SETTINGS, places.of, lambda: self.now)
        self.peers = PeerBook("own", self.reputation)
        shares = PeerShares(SHARE, places, self.reputation.is_new, lambda: self.now)
        self.requests = RequestDoor(self.peers, shares)
        self.door = PeerDoor(self.peers, shares, ReplayWindow(600, lambda: self.now))

    def rejected(self, peer_id: str) -> dict[str, int]:
        return {view.peer_id: view.rejected for view in self.peers.views(())}.get(peer_id, {})


def test_what_is_over_the_share_is_counted_for_the_peer_and_costs_no_good_name() -> None:
    setting = Setting()
    taken = sum(setting.door.admits(Received("a", b"x")) for _ in range(100))
    assert taken == 10
    assert setting.rejected("a") == {"rate_limited": 90}
    assert setting.reputation.view("a").score == 0
    assert setting.door.admits(Received("b", b"x"))


def test_a_flood_ends_with_a_closed_peer() -> None:
    setting = Setting()
    for _ in range(2_000):
        setting.door.admits(Received("a", b"x"))
    assert setting.reputation.is_closed("a")
    setting.now += 1
    assert not setting.door.admits(Received("a", b"x"))
    assert setting.rejected("a")["banned"] >= 1


def test_a_message_sent_again_in_anothers_name_is_booked_on_nobody_and_takes_nothing_of_its_share() -> None:
    setting = Setting()
    own = [Received("a", b"x", number) for number in range(500, 505)]
    assert all(map(setting.door.admits, own))
    for _ in range(1_000):
        assert not any(map(setting.door.admits, own))
    assert setting.rejected("a") == {}
    assert setting.peers.rejected == {"duplicate": 5_000}
    assert setting.door.admits(Received("a", b"x", 505))


def test_what_had_to_leave_a_full_queue_is_counted_for_its_peer() -> None:
    setting = Setting()
    subscription = Subscription("topic", 2, setting.door)
    for _ in range(4):
        subscription.push(Received("a", b"x"))
    assert setting.rejected("a") == {"queue_full": 2}


@pytest.mark.parametrize("number", [2**64, 2**8_000_000], ids=["nine bytes", "a megabyte"])
def test_a_number_that_no_publisher_counts_with_is_counted_for_the_peer_and_not_remembered(
    number: int,
) -> None:
    setting = Setting()
    assert not setting.door.admits(Received("a", b"x", number))
    assert setting.rejected("a") == {"malformed": 1}
    assert setting.door.admits(Received("a", b"x", 1))


def test_requests_over_the_share_are_refused_and_a_flood_of_them_closes_the_peer() -> None:
    setting = Setting()
    assert sum(setting.requests.admits("a", 1) for _ in range(100)) == 10
    assert setting.rejected("a") == {"rate_limited": 90}
    assert setting.requests.admits("b", 1)
    for _ in range(2_000):
        setting.requests.admits("a", 1)
    assert setting.reputation.is_closed("a")
    setting.now += 10
    assert not setting.requests.admits("a", 1)
    assert setting.rejected("a")["banned"] >= 1
