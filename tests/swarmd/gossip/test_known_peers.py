import itertools

from swarmd.gossip.dialer import Backoff
from swarmd.gossip.known_peers import KnownPeers
from swarmd.gossip.transport import KnownPeer

BACKOFF = Backoff(min_seconds=10, max_seconds=100)


def peer(name: str, *addresses: str) -> KnownPeer:
    return KnownPeer(name, addresses or (f"/ip4/127.0.0.1/tcp/1/p2p/{name}",))


def test_newest_peers_are_tried_first_and_only_as_many_as_wanted() -> None:
    known = KnownPeers("own", BACKOFF)
    known.add([peer("a"), peer("b"), peer("c")])
    assert known.take_due(2, (), now=0) == [peer("c"), peer("b")]
    assert known.take_due(2, (), now=0) == [peer("a")]
    assert known.take_due(0, (), now=1000) == []


def test_own_id_and_peers_without_addresses_are_left_out() -> None:
    known = KnownPeers("own", BACKOFF)
    known.add([peer("own"), KnownPeer("a", ())])
    assert len(known) == 0


def test_an_unreachable_peer_is_tried_less_and_less_often() -> None:
    known = KnownPeers("own", BACKOFF)
    known.add([peer("a")])
    tries = [now for now in range(1000) if known.take_due(1, (), now)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(tries)]
    assert 5 <= gaps[0] <= 11
    assert gaps[-1] >= 50
    assert max(gaps) <= 101


def test_a_connected_peer_is_not_dialled_and_afterwards_starts_afresh() -> None:
    known = KnownPeers("own", BACKOFF)
    known.add([peer("a")])
    assert known.take_due(1, (), now=0) == [peer("a")]
    assert known.take_due(1, {"a"}, now=500) == []
    assert known.take_due(1, (), now=500) == [peer("a")]


def test_new_addresses_are_tried_at_once_but_the_same_ones_are_not() -> None:
    known = KnownPeers("own", BACKOFF)
    known.add([peer("a")])
    known.take_due(1, (), now=0)
    known.add([peer("a")])
    assert known.take_due(1, (), now=1) == []
    known.add([peer("a", "/ip4/127.0.0.1/tcp/2")])
    assert known.take_due(1, (), now=1) == [peer("a", "/ip4/127.0.0.1/tcp/2")]


def test_the_number_of_peers_and_addresses_is_bounded() -> None:
    known = KnownPeers("own", BACKOFF)
    known.add(
        peer(f"p{number}", *[f"/ip4/1.1.1.1/tcp/{port}" for port in range(50)]) for number in range(1000)
    )
    assert len(known) == 256
    newest = known.take_due(1, (), now=0)[0]
    assert newest.peer_id == "p999"
    assert len(newest.addresses) == 8


def test_a_crowd_of_strangers_displaces_no_peer_in_good_standing() -> None:
    known = KnownPeers("own", BACKOFF, lambda peer_id: peer_id.startswith("good"))
    known.add([peer("good 1"), peer("good 2")])
    known.add(peer(f"stranger {number}") for number in range(1000))
    assert known.take_due(9, (), now=0, in_good_standing=True) == [peer("good 2"), peer("good 1")]
    assert len(known) == 256
