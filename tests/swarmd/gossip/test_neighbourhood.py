import pytest

from swarmd.gossip.neighbourhood import UNSEEN, Neighbourhoods

PRIVATE = ("127.0.0.0/8", "192.168.0.0/16", "::1/128", "fc00::/7")


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("/ip4/203.0.113.5/tcp/31337", "203.0.113.0/24"),
        ("/ip4/203.0.113.250/udp/1/quic-v1", "203.0.113.0/24"),
        ("/ip6/2001:db8:1:2ff::1/tcp/1", "2001:db8:1:200::/56"),
        ("/ip6/::ffff:203.0.113.7/tcp/1", "203.0.113.0/24"),
        ("/ip4/127.0.0.1/tcp/1", None),
        ("/ip4/192.168.7.7/tcp/1", None),
        ("/ip6/::1/tcp/1", None),
        ("/ip6/fd00::1/tcp/1", None),
        ("/ip4/203.0.113.5/tcp/1/p2p/12D3KooWrelay/p2p-circuit/p2p/12D3KooWother", "relay 12D3KooWrelay"),
        ("/ip4/999.1.1.1/tcp/1", None),
        ("/memory/a", None),
        ("", None),
    ],
)
def test_where_an_address_lies(address: str, place: str | None) -> None:
    places = Neighbourhoods(PRIVATE)
    places.note_connected({"peer": (address,)})
    assert places.of("peer") == place


def test_a_peer_that_was_never_connected_lives_with_all_such() -> None:
    assert Neighbourhoods(()).of("stranger") == UNSEEN


def test_a_second_address_that_says_something_counts_and_a_peer_is_remembered_after_it_left() -> None:
    places = Neighbourhoods(PRIVATE)
    places.note_connected({"peer": ("/ip4/127.0.0.1/tcp/1", "/ip4/203.0.113.5/tcp/1")})
    places.note_connected({"other": ("/ip4/198.51.100.1/tcp/1",)})
    assert places.of("peer") == "203.0.113.0/24"


def test_the_memory_is_bounded_and_the_peer_that_left_first_is_forgotten() -> None:
    places = Neighbourhoods((), most_peers=2)
    for name in ("a", "b", "c"):
        places.note_connected({name: ("/ip4/203.0.113.5/tcp/1",)})
    assert (places.of("a"), places.of("c")) == (UNSEEN, "203.0.113.0/24")


def test_with_no_exempt_networks_loopback_is_a_neighbourhood() -> None:
    places = Neighbourhoods(())
    places.note_connected({"peer": ("/ip4/127.0.0.1/tcp/1",)})
    assert places.of("peer") == "127.0.0.0/24"
