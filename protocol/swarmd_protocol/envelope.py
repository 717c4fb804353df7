"""The envelope: who said it, when, for which swarm, and the signature that makes it so.

An envelope is a MessagePack array of two byte strings, body and signature. The signature covers a
prefix and the body bytes exactly as sent, so nobody has to agree on a canonical encoding, and a
third node can pass an envelope on without weakening it. Keys stay outside: `seal` gets a function
that signs, `open_envelope` one that verifies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from swarmd_protocol.bounds import check_time
from swarmd_protocol.codec import DecodeLimits, decode, encode
from swarmd_protocol.errors import ProtocolError, Reason, Refusal
from swarmd_protocol.messages import PROTOCOL_VERSION, Kind

Sign: TypeAlias = Callable[[bytes], bytes]
"""message -> Ed25519 signature (64 bytes)"""
Verify: TypeAlias = Callable[[bytes, bytes, bytes], bool]
"""(public_key, signature, message) -> whether the signature is good. Must not raise."""

MAX_ENVELOPE_BYTES = 900_000
"""GossipSub silently drops messages above 1 MiB; this leaves room for its own header."""
SIGNATURE_DOMAIN = b"swarmd-envelope-v1\x00"
"""Stands before the body in what is signed, so that a signature serves for nothing else."""
PUBLIC_KEY_BYTES = 32
SIGNATURE_BYTES = 64


class EnvelopeBody(msgspec.Struct, frozen=True):
    """What the author signs."""

    version: int
    """Protocol version, first so that a reader of another version can see it and stop."""
    kind: str
    """A `Kind`; a plain string here because newer peers know more of them."""
    swarm_id: str
    """Hex digest of the manifest."""
    author: bytes
    """Ed25519 public key, 32 bytes. The author's peer id follows from it."""
    created_ms: int
    """When it was sealed: the author's wall clock, milliseconds since the Unix epoch, UTC."""
    payload: bytes
    """The message of that kind, encoded."""


class Envelope(msgspec.Struct, frozen=True):
    """An envelope that was opened: complete, of this swarm, in time, and signed by `author`."""

    kind: Kind
    author: bytes
    created_ms: int
    payload: bytes
    """Not yet decoded: `codec.decode(envelope.payload, RolloutGroupMessage)` is next."""


class EnvelopeLimits(msgspec.Struct, frozen=True):
    """What a receiver is ready to open in one place (a topic, a DHT key, a catch-up reply)."""

    swarm_id: str
    kind: Kind
    max_age_ms: int | None
    """None: of any age, for what does not age, such as a manifest."""
    max_skew_ms: int = 60_000
    max_bytes: int = MAX_ENVELOPE_BYTES


def seal(body: EnvelopeBody, sign: Sign) -> bytes:
    """The bytes to send. Their length may exceed MAX_ENVELOPE_BYTES: the publisher looks before it sends.

    Raises ProtocolError for a key or signature of the wrong length.
    """
    if len(body.author) != PUBLIC_KEY_BYTES:
        raise ProtocolError(f"author must be a key of {PUBLIC_KEY_BYTES} bytes, got {len(body.author)}")
    body_bytes = encode(body)
    signature = sign(SIGNATURE_DOMAIN + body_bytes)
    if len(signature) != SIGNATURE_BYTES:
        raise ProtocolError(f"a signature has {SIGNATURE_BYTES} bytes, got {len(signature)}")
    return encode((body_bytes, signature))


def seal_message(
    message: object, *, kind: Kind, swarm_id: str, author: bytes, created_ms: int, sign: Sign
) -> bytes:
    """Encode a message of this kind and seal it, in the current protocol version."""
    body = EnvelopeBody(
        version=PROTOCOL_VERSION,
        kind=kind,
        swarm_id=swarm_id,
        author=author,
        created_ms=created_ms,
        payload=encode(message),
    )
    return seal(body, sign)


def open_envelope(data: bytes, verify: Verify, limits: EnvelopeLimits, now_ms: int) -> Envelope | Refusal:
    """The envelope in `data`, or why it was refused. Never raises, whatever the bytes are.

    Cheap checks come first and the signature last. A refusal is therefore never proven to be the
    doing of the author it names: blame the peer that delivered it, if anybody.
    """
    outer = decode(data, tuple[bytes, bytes], DecodeLimits(max_bytes=limits.max_bytes, max_depth=1))
    if isinstance(outer, Refusal):
        return outer
    body_bytes, signature = outer
    body = _decode_body(body_bytes)
    if isinstance(body, Refusal):
        return body
    reason = _check_body(body, limits, now_ms)
    if reason is not None:
        return Refusal(reason)
    if len(signature) != SIGNATURE_BYTES:
        return Refusal(Reason.BAD_SIGNATURE, f"{len(signature)} bytes instead of {SIGNATURE_BYTES}")
    if not verify(body.author, signature, SIGNATURE_DOMAIN + body_bytes):
        return Refusal(Reason.BAD_SIGNATURE)
    return Envelope(
        kind=Kind(body.kind), author=body.author, created_ms=body.created_ms, payload=body.payload
    )


class _Version(msgspec.Struct, frozen=True):
    version: int


def _decode_body(body_bytes: bytes) -> EnvelopeBody | Refusal:
    # The version alone first: the other fields of a newer version may look like anything.
    head = decode(body_bytes, _Version)
    if isinstance(head, Refusal):
        return head
    if head.version != PROTOCOL_VERSION:
        return Refusal(Reason.UNSUPPORTED_VERSION, f"version {head.version}, this is {PROTOCOL_VERSION}")
    return decode(body_bytes, EnvelopeBody)


def _check_body(body: EnvelopeBody, limits: EnvelopeLimits, now_ms: int) -> Reason | None:
    if len(body.author) != PUBLIC_KEY_BYTES:
        return Reason.MALFORMED
    if body.kind not in _KNOWN_KINDS:
        return Reason.UNKNOWN_KIND
    if body.kind != limits.kind:
        return Reason.WRONG_KIND
    if body.swarm_id != limits.swarm_id:
        return Reason.WRONG_SWARM
    return check_time(body.created_ms, limits.max_age_ms, limits.max_skew_ms, now_ms)


_KNOWN_KINDS = frozenset(kind.value for kind in Kind)
