import pytest
from hypothesis import given
from hypothesis import strategies as st
from swarmd_protocol.errors import ProtocolError
from swarmd_protocol.peer_id import peer_id_of, public_key_of


@given(st.binary(min_size=32, max_size=32))
def test_a_public_key_survives_the_round_trip(public_key):
    peer_id = peer_id_of(public_key)
    assert peer_id.startswith("12D3Koo")
    assert public_key_of(peer_id) == public_key


def test_peer_id_is_that_of_another_implementation():
    # The Ed25519 key of the libp2p peer-ids specification, encoded by an independent base58 library.
    public_key = bytes.fromhex("1ed1e8fae2c4a144b8be8fd4b47bf3d3b34b871c3cacf6010f0e42d474fce27e")
    assert peer_id_of(public_key) == "12D3KooWBtg3aaRMjxwedh83aGiUkwSxDwUZkzuJcfaqUmo7R3pq"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "lab-3",
        "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N",  # RSA
        "12D3KooWD3eckifWpRn9wQpMG9R9hX3sD158z7EqHWmweQAJU5S",  # a character short
        "12D3KooWD3eckifWpRn9wQpMG9R9hX3sD158z7EqHWmweQAJU50A",  # 0 is no base58 digit
        "z" * 52,
        "1" * 52,
        "12D3Koo" + "z" * 1_000_000,
    ],
)
def test_text_that_is_no_ed25519_peer_id_has_no_key(text):
    assert public_key_of(text) is None


@given(st.text(max_size=60) | st.text("123456789ABCabc", min_size=52, max_size=52))
def test_any_text_is_a_key_or_none(text):
    public_key = public_key_of(text)
    assert public_key is None or peer_id_of(public_key) == text


def test_a_key_of_another_length_is_our_own_mistake():
    with pytest.raises(ProtocolError, match="got 31"):
        peer_id_of(bytes(31))
