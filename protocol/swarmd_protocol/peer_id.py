"""Ed25519 public key <-> libp2p peer id.

The peer id of an Ed25519 key is the key itself, wrapped: base58btc over an identity multihash over
libp2p's protobuf PublicKey. So whoever knows a peer id can check that peer's signatures.
Source: libp2p peer-ids specification, https://github.com/libp2p/specs/blob/master/peer-ids/peer-ids.md
"""

from __future__ import annotations

import functools

from swarmd_protocol.errors import ProtocolError

PUBLIC_KEY_BYTES = 32

# multihash: code 0 (identity), length 36; protobuf: field 1 = 1 (Ed25519), field 2 = 32 bytes
_PREFIX = bytes([0x00, 0x24, 0x08, 0x01, 0x12, 0x20])
_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_DIGITS = {character: value for value, character in enumerate(_ALPHABET)}
_PEER_ID_CHARACTERS = 52


@functools.lru_cache(maxsize=4096)
def peer_id_of(public_key: bytes) -> str:
    """The peer id (12D3Koo...) of an Ed25519 public key of 32 bytes. Remembered: base 58 is slow.

    Raises ProtocolError for any other length.
    """
    if len(public_key) != PUBLIC_KEY_BYTES:
        raise ProtocolError(f"an Ed25519 public key has {PUBLIC_KEY_BYTES} bytes, got {len(public_key)}")
    return _to_base58(_PREFIX + public_key)


def public_key_of(peer_id: str) -> bytes | None:
    """The Ed25519 public key in a peer id; None when it is no peer id or one of another key type."""
    # Base58 costs the square of the length: look at the length first.
    if len(peer_id) != _PEER_ID_CHARACTERS or any(character not in _DIGITS for character in peer_id):
        return None
    multihash = _from_base58(peer_id)
    if len(multihash) != len(_PREFIX) + PUBLIC_KEY_BYTES or not multihash.startswith(_PREFIX):
        return None
    return multihash[len(_PREFIX) :]


def _to_base58(data: bytes) -> str:
    number = int.from_bytes(data, "big")
    digits: list[str] = []
    while number:
        number, digit = divmod(number, 58)
        digits.append(_ALPHABET[digit])
    leading_zeros = len(data) - len(data.lstrip(b"\x00"))
    return _ALPHABET[0] * leading_zeros + "".join(reversed(digits))


def _from_base58(text: str) -> bytes:
    number = 0
    for character in text:
        number = number * 58 + _DIGITS[character]
    leading_zeros = len(text) - len(text.lstrip(_ALPHABET[0]))
    return b"\x00" * leading_zeros + number.to_bytes((number.bit_length() + 7) // 8, "big")
