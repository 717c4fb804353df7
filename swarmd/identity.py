"""The node's identity: an Ed25519 key in a file that p2pd reads too.

The file is libp2p's protobuf PrivateKey. The peer id contains the public key, so a signature can be
checked by whoever knows the peer id. A file that is not such a key is never touched: a new identity
is made only where there is no file at all.
"""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from swarmd_protocol.peer_id import peer_id_of

from swarmd.errors import IdentityFileError

# protobuf PrivateKey: field 1 (type) = 1 (Ed25519), field 2 (data) = 64 bytes: seed, public key
_FILE_PREFIX = bytes([0x08, 0x01, 0x12, 0x40])
_SEED_BYTES = 32
_FILE_BYTES = len(_FILE_PREFIX) + 2 * _SEED_BYTES


class Identity:
    """One key pair. Signs with the private half and names the public half; shows neither by accident."""

    def __init__(self, private_key: Ed25519PrivateKey) -> None:
        self._private_key = private_key
        self.public_key: bytes = private_key.public_key().public_bytes_raw()
        """Ed25519 public key, 32 bytes."""
        self.peer_id: str = peer_id_of(self.public_key)
        """libp2p peer id, 12D3Koo..."""

    @classmethod
    def generate(cls) -> Identity:
        """A new random identity, in memory only."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def of_seed(cls, seed: bytes) -> Identity:
        """The identity that 32 bytes give: the same for the same bytes, and no secret to who knows them."""
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    @classmethod
    def create(cls, path: Path) -> Identity:
        """Make a new identity and write it to `path` (mode 0600).

        Raises IdentityFileError when there is a file already or it cannot be written.
        """
        identity = cls.generate()
        _write_new(path, identity._to_file_bytes())
        return identity

    @classmethod
    def load(cls, path: Path) -> Identity:
        """The identity in `path`. Raises IdentityFileError when it is missing, unreadable or no such key."""
        try:
            with path.open("rb") as file:
                data = file.read(_FILE_BYTES * 64)
        except FileNotFoundError as error:
            raise IdentityFileError(f"no identity file {path}; `swarmd identity new` makes one") from error
        except OSError as error:
            raise IdentityFileError(f"cannot read identity file {path}: {error.strerror}") from error
        return cls(_private_key_in(data, path))

    @classmethod
    def load_or_create(cls, path: Path) -> Identity:
        """The identity in `path`, or a new one written there if, and only if, there is no file."""
        return cls.load(path) if os.path.lexists(path) else cls.create(path)

    def sign(self, message: bytes) -> bytes:
        """Ed25519 signature of the message, 64 bytes."""
        return self._private_key.sign(message)

    def __repr__(self) -> str:
        return f"Identity({self.peer_id})"

    def _to_file_bytes(self) -> bytes:
        return _FILE_PREFIX + self._private_key.private_bytes_raw() + self.public_key


def verify(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether `signature` is the Ed25519 signature of `message` under `public_key`; False for garbage too."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _private_key_in(data: bytes, path: Path) -> Ed25519PrivateKey:
    if not data:
        raise IdentityFileError(
            f"identity file {path} is empty; restore it, or move it away for a new identity"
        )
    if len(data) != _FILE_BYTES or not data.startswith(_FILE_PREFIX):
        raise IdentityFileError(
            f"identity file {path} is not an Ed25519 key in libp2p's format; it is left as it is, "
            "move it away for a new identity"
        )
    seed_start = len(_FILE_PREFIX)
    private_key = Ed25519PrivateKey.from_private_bytes(data[seed_start : seed_start + _SEED_BYTES])
    if private_key.public_key().public_bytes_raw() != data[seed_start + _SEED_BYTES :]:
        raise IdentityFileError(f"identity file {path} is damaged: its two halves are not one key pair")
    return private_key


def _write_new(path: Path, data: bytes) -> None:
    try:
        # O_EXCL: whatever is there, a link included, is somebody's identity and stays.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise IdentityFileError(f"there is an identity file already: {path}; it is left as it is") from error
    except OSError as error:
        raise IdentityFileError(f"cannot create identity file {path}: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        path.unlink()
        raise IdentityFileError(f"cannot write identity file {path}: {error.strerror}") from error
