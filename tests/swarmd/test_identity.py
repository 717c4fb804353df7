import os
import stat

import pytest

from swarmd.errors import IdentityFileError
from swarmd.identity import Identity, verify

# The Ed25519 key of the libp2p peer-ids specification.
SPECIFICATION_FILE = bytes.fromhex(
    "08011240"
    "7e0830617c4a7de83925dfb2694556b12936c477a0e1feb2e148ec9da60fee7d"
    "1ed1e8fae2c4a144b8be8fd4b47bf3d3b34b871c3cacf6010f0e42d474fce27e"
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "identity.key"


def test_a_created_identity_loads_again(path):
    created = Identity.create(path)
    loaded = Identity.load(path)
    assert loaded.peer_id == created.peer_id
    assert loaded.public_key == created.public_key
    assert verify(created.public_key, loaded.sign(b"message"), b"message")


def test_two_identities_differ():
    assert Identity.generate().peer_id != Identity.generate().peer_id


def test_only_the_owner_can_read_the_file(path):
    old_mask = os.umask(0)
    try:
        Identity.create(path)
    finally:
        os.umask(old_mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_key_file_of_the_libp2p_specification_loads(path):
    path.write_bytes(SPECIFICATION_FILE)
    assert Identity.load(path).peer_id == "12D3KooWBtg3aaRMjxwedh83aGiUkwSxDwUZkzuJcfaqUmo7R3pq"


def test_load_or_create_creates_once(path):
    first = Identity.load_or_create(path)
    assert Identity.load_or_create(path).peer_id == first.peer_id


def test_create_never_overwrites(path):
    path.write_bytes(b"something else")
    with pytest.raises(IdentityFileError, match="already"):
        Identity.create(path)
    assert path.read_bytes() == b"something else"


def test_a_link_to_nowhere_is_neither_followed_nor_replaced(path, tmp_path):
    path.symlink_to(tmp_path / "nowhere")
    for make in (Identity.create, Identity.load_or_create):
        with pytest.raises(IdentityFileError):
            make(path)
    assert path.is_symlink()
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\x08\x01", "not an Ed25519 key"),
        (b"-----BEGIN OPENSSH PRIVATE KEY-----\n" * 10, "not an Ed25519 key"),
        (b"\x08\x00\x12\xa7\x09" + bytes(1191), "not an Ed25519 key"),  # an RSA key as hivemind makes it
        (SPECIFICATION_FILE + b"\x00", "not an Ed25519 key"),
        (SPECIFICATION_FILE[:-1], "not an Ed25519 key"),
        (SPECIFICATION_FILE[:-1] + b"\x00", "damaged"),
        (SPECIFICATION_FILE[:4] + bytes(32) + SPECIFICATION_FILE[36:], "damaged"),
    ],
)
def test_a_file_that_is_no_identity_is_one_line_and_left_as_it_is(path, content, message):
    path.write_bytes(content)
    for read in (Identity.load, Identity.load_or_create):
        with pytest.raises(IdentityFileError, match=message) as caught:
            read(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
    assert path.read_bytes() == content


def test_a_missing_file_names_the_command_that_makes_one(path):
    with pytest.raises(IdentityFileError, match="swarmd identity new"):
        Identity.load(path)
    assert not path.exists()


def test_a_folder_in_place_of_the_file_is_one_line(path):
    path.mkdir()
    with pytest.raises(IdentityFileError, match="Is a directory"):
        Identity.load_or_create(path)


def test_an_unwritable_place_is_one_line_and_leaves_nothing(tmp_path):
    with pytest.raises(IdentityFileError, match="No such file or directory"):
        Identity.create(tmp_path / "missing" / "identity.key")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_no_half_file(path, monkeypatch):
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(IdentityFileError, match="No space left"):
        Identity.create(path)
    assert not path.exists()


def test_the_exit_code_of_a_bad_identity_is_3():
    assert IdentityFileError.exit_code == 3


def test_signatures_hold_for_one_key_and_one_message_only():
    author, stranger = Identity.generate(), Identity.generate()
    signature = author.sign(b"message")
    assert len(signature) == 64
    assert verify(author.public_key, signature, b"message")
    assert not verify(author.public_key, signature, b"another")
    assert not verify(stranger.public_key, signature, b"message")


@pytest.mark.parametrize("public_key", [b"", bytes(31), bytes(33), b"\xff" * 32])
@pytest.mark.parametrize("signature", [b"", bytes(63), bytes(64), b"\xff" * 64])
def test_garbage_keys_and_signatures_are_false_not_errors(public_key, signature):
    assert verify(public_key, signature, b"message") is False


def test_the_private_half_shows_in_no_representation(path):
    identity = Identity.create(path)
    seed_hex = path.read_bytes()[4:36].hex()
    assert repr(identity) == str(identity) == f"Identity({identity.peer_id})"
    assert seed_hex not in repr(vars(identity))


@pytest.mark.swarm
async def test_p2pd_takes_the_file_and_gives_the_same_peer_id(path):
    from hivemind.p2p import P2P

    identity = Identity.create(path)
    p2p = await P2P.create(identity_path=str(path), check_if_identity_free=False, host_maddrs=[])
    try:
        assert p2p.peer_id.to_base58() == identity.peer_id
    finally:
        await p2p.shutdown()
