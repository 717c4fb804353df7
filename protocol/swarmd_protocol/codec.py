"""Bytes to typed messages and back. Decoding is bounded before it allocates.

A walk over the bytes comes first. It reads headers only, so a claimed length of four gigabytes or
a thousand nested arrays cost nothing; what passes is decoded by msgspec into the message type.
`decode` returns the message or a `Refusal`, whatever the bytes are.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from swarmd_protocol.errors import ProtocolError, Reason, Refusal

M = TypeVar("M")


class DecodeLimits(msgspec.Struct, frozen=True):
    """How much structure a peer may send in one message."""

    max_bytes: int = 1_048_576
    max_depth: int = 8
    """Maps and arrays inside each other."""
    max_items: int = 16_384
    """Values in all, the keys of maps included."""


DEFAULT_LIMITS = DecodeLimits()


def encode(message: object) -> bytes:
    """A message as MessagePack: a map with the fields in the order of their declaration.

    Raises ProtocolError when MessagePack cannot hold a value, such as a lone surrogate in a text.
    """
    try:
        return msgspec.msgpack.encode(message)
    except (UnicodeEncodeError, OverflowError, TypeError) as error:
        raise ProtocolError(f"{type(message).__name__} cannot be encoded: {error}") from error


def decode(data: bytes, message_type: type[M], limits: DecodeLimits = DEFAULT_LIMITS) -> M | Refusal:
    """The message in `data`, or why there is none: `oversized` or `malformed`.

    Unknown fields are skipped. Missing fields, wrong types, duplicate keys, bytes after the end,
    extension types and text that is not UTF-8 are malformed.
    """
    if len(data) > limits.max_bytes:
        return Refusal(Reason.OVERSIZED, f"{len(data)} bytes, at most {limits.max_bytes} are read")
    defect = structural_defect(data, limits)
    if defect is not None:
        return Refusal(Reason.MALFORMED, defect)
    try:
        return _decoder(message_type).decode(data)
    except msgspec.DecodeError:
        return Refusal(Reason.MALFORMED, f"not a {message_type.__name__}")


# One for each message type there is. Making a decoder costs more than using it.
_DECODERS: dict[object, msgspec.msgpack.Decoder[Any]] = {}


def _decoder(message_type: type[M]) -> msgspec.msgpack.Decoder[M]:
    if message_type not in _DECODERS:
        _DECODERS[message_type] = msgspec.msgpack.Decoder(message_type)
    return _DECODERS[message_type]


def structural_defect(data: bytes, limits: DecodeLimits) -> str | None:
    """Why `data` is not exactly one well-formed MessagePack value within the limits; None if it is."""
    walk = _Walk(data, limits.max_items)
    try:
        walk.value(limits.max_depth)
    except _DefectError as defect:
        return str(defect)
    return None if walk.position == len(data) else "bytes after the end of the message"


class _DefectError(Exception):
    """Ends a walk. Never leaves this module."""


# MessagePack tags, https://github.com/msgpack/msgpack/blob/master/spec.md
_SCALAR_BYTES = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8} | {
    tag: 1 << (tag & 3)
    for tag in range(0xCC, 0xD4)  # uint 8-64, int 8-64
}
_RAW_LENGTH_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}  # bin, str
_ARRAY_LENGTH_BYTES = {0xDC: 2, 0xDD: 4}
_MAP_LENGTH_BYTES = {0xDE: 2, 0xDF: 4}
_STR_TAGS = frozenset({0xD9, 0xDA, 0xDB})


class _Walk:
    """Reads the headers of one MessagePack value without building anything."""

    def __init__(self, data: bytes, items_left: int) -> None:
        self.position = 0
        self._data = data
        self._items_left = items_left

    def value(self, depth_left: int) -> None:
        """Pass over one value of any type."""
        tag = self._tag()
        if tag <= 0x7F or tag >= 0xE0:  # small integers
            return
        if tag in _SCALAR_BYTES:
            self._skip(_SCALAR_BYTES[tag])
        elif 0xA0 <= tag <= 0xBF:
            self._skip(tag & 0x1F)
        elif tag in _RAW_LENGTH_BYTES:
            self._skip(self._length(_RAW_LENGTH_BYTES[tag]))
        elif 0x90 <= tag <= 0x9F:
            self._array(tag & 0x0F, depth_left)
        elif tag in _ARRAY_LENGTH_BYTES:
            self._array(self._length(_ARRAY_LENGTH_BYTES[tag]), depth_left)
        elif 0x80 <= tag <= 0x8F:
            self._map(tag & 0x0F, depth_left)
        elif tag in _MAP_LENGTH_BYTES:
            self._map(self._length(_MAP_LENGTH_BYTES[tag]), depth_left)
        else:
            raise _DefectError("an extension type or an unused tag")

    def _array(self, length: int, depth_left: int) -> None:
        self._enter(length, depth_left)
        for _ in range(length):
            self.value(depth_left - 1)

    def _map(self, length: int, depth_left: int) -> None:
        self._enter(2 * length, depth_left)
        keys: set[bytes] = set()
        for _ in range(length):
            key = self._key()
            # Two readers may pick different values for a key that stands there twice.
            if key in keys:
                raise _DefectError("a key stands twice in a map")
            keys.add(key)
            self.value(depth_left - 1)

    def _key(self) -> bytes:
        tag = self._tag()
        if 0xA0 <= tag <= 0xBF:
            length = tag & 0x1F
        elif tag in _STR_TAGS:
            length = self._length(_RAW_LENGTH_BYTES[tag])
        else:
            raise _DefectError("a key that is not text")
        start = self.position
        self._skip(length)
        return self._data[start : self.position]

    def _enter(self, items: int, depth_left: int) -> None:
        if depth_left <= 0:
            raise _DefectError("nested too deep")
        if items > self._items_left:
            raise _DefectError("too many values")

    def _tag(self) -> int:
        self._items_left -= 1
        if self._items_left < 0:
            raise _DefectError("too many values")
        start = self.position
        self._skip(1)
        return self._data[start]

    def _length(self, width: int) -> int:
        start = self.position
        self._skip(width)
        return int.from_bytes(self._data[start : self.position], "big")

    def _skip(self, count: int) -> None:
        self.position += count
        if self.position > len(self._data):
            raise _DefectError("ends too early")


def pack_logprobs(logprobs_T: Sequence[float]) -> bytes:
    """Log-probabilities (nats) as little-endian float32, the form of `BehaviourLogprobs.values`.

    Raises ProtocolError when one is not finite.
    """
    if not all(math.isfinite(value) for value in logprobs_T):
        raise ProtocolError("log-probabilities must be finite")
    try:
        return struct.pack(f"<{len(logprobs_T)}f", *logprobs_T)
    except OverflowError as error:
        raise ProtocolError("a log-probability does not fit into float32") from error


def unpack_logprobs(block: bytes) -> tuple[float, ...]:
    """The inverse of `pack_logprobs`, for a block that `validation.check_group` has accepted.

    Raises ProtocolError when the length is not a multiple of four bytes.
    """
    if len(block) % 4:
        raise ProtocolError(f"a block of float32 has a multiple of 4 bytes, got {len(block)}")
    values: tuple[Any, ...] = struct.unpack(f"<{len(block) // 4}f", block)
    return values
