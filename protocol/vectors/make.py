"""Writes the golden vectors, always the same ones. README.md says what the files hold.

Kept apart from the tests: they read the committed files, and check that this script still gives them.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgpack
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from swarmd_protocol.codec import encode, pack_logprobs
from swarmd_protocol.envelope import SIGNATURE_DOMAIN, EnvelopeBody, seal
from swarmd_protocol.messages import (
    BehaviourLogprobs,
    CatchUpReply,
    CatchUpRequest,
    CompletionMessage,
    FinishReason,
    Kind,
    ManifestMessage,
    NodeRecordMessage,
    RolloutGroupMessage,
    TaskReference,
)
from swarmd_protocol.peer_id import peer_id_of

FOLDER = Path(__file__).parent
NOW_MS = 1_760_000_000_000
MAX_AGE_MS = 600_000
MAX_SKEW_MS = 60_000
SWARM_ID = "5a" * 32

SMALL_GROUP = RolloutGroupMessage(
    group_id=bytes(range(16)),
    task=TaskReference("binary_matrix", "0d" * 32, seed=4_611_686_018_427_387_000, index=7),
    completions=(
        CompletionMessage("0 1 2", FinishReason.STOP),
        CompletionMessage("", FinishReason.LENGTH),
    ),
    policy_version=3,
    model="tiny",
    created_ms=NOW_MS - 1000,
)
GROUP_WITH_LOGPROBS = msgspec.structs.replace(
    SMALL_GROUP,
    completions=(
        CompletionMessage("naïve 日本 🙂\n\t\x00", FinishReason.STOP),
        CompletionMessage("x" * 300, FinishReason.LENGTH),
    ),
    behaviour=BehaviourLogprobs("f0" * 32, (pack_logprobs([-0.5, -1.25, 0.0]), pack_logprobs([-30.0]))),
)
NODE_RECORD = NodeRecordMessage(
    name="lab-3",
    model="qwen2.5-0.5b",
    software="swarmd 0.1.0",
    round=12,
    policy_version=11,
    addresses=("/ip4/192.0.2.7/tcp/31337",),
    created_ms=NOW_MS,
)
MESSAGES: dict[str, object] = {
    "rollout group": SMALL_GROUP,
    "rollout group with log-probabilities": GROUP_WITH_LOGPROBS,
    "node record": NODE_RECORD,
    "node record without addresses": msgspec.structs.replace(NODE_RECORD, name="", addresses=()),
    "manifest": ManifestMessage('name = "tiny"\n'),
    "catch-up request": CatchUpRequest(SWARM_ID, since_ms=0, max_groups=256, max_bytes=4_000_000),
    "catch-up reply": CatchUpReply((b"\x92\xc4\x00\xc4\x00", b"\x00")),
    "catch-up reply without groups": CatchUpReply(),
    "catch-up refused": CatchUpReply(refused="asked too often"),
}
TEXTS = (
    ("ascii with control characters", "tab\t, newline\n, null" + chr(0), True),
    ("other scripts", "日本語 हिन्दी العربية", True),
    ("30 combining marks in a row", "e" + chr(0x301) * 30, True),
    ("31 combining marks in a row", "e" + chr(0x301) * 31, False),
    ("31 marks of two kinds", "e" + (chr(0x301) + chr(0x323)) * 15 + chr(0x301), False),
    ("one character that becomes 18, among enough others", "aaaaa" + chr(0xFDFA), True),
    ("one character that becomes 18", "aaa" + chr(0xFDFA), False),
    ("characters that become three", chr(0x2026) * 8, True),
)
"""Whether a text costs no more to normalise than its length says."""


def main() -> None:
    """Write all files into this folder."""
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


def files() -> dict[str, str]:
    """File name -> content."""
    contents = {
        "keys.json": _keys(),
        "messages.json": [_message_case(name, message) for name, message in MESSAGES.items()],
        "readable.json": _readable(),
        "envelopes.json": _envelopes(),
        "refusals.json": _refusals(),
        "texts.json": [{"name": name, "text": text, "plain": plain} for name, text, plain in TEXTS],
    }
    return {
        name: json.dumps({"cases": cases}, indent=1, ensure_ascii=True) + "\n"
        for name, cases in contents.items()
    }


def _keys() -> list[object]:
    cases = []
    for number in (1, 2, 255):
        seed = bytes([number]) * 32
        public_key = _public_key(seed)
        cases.append(
            {
                "name": f"seed of {number}s",
                "seed": seed.hex(),
                "public_key": public_key.hex(),
                "peer_id": peer_id_of(public_key),
                "identity_file": (bytes.fromhex("08011240") + seed + public_key).hex(),
            }
        )
    return cases


def _message_case(name: str, message: object) -> dict[str, object]:
    return {
        "name": name,
        "message": type(message).__name__,
        "fields": _jsonable(msgspec.to_builtins(message, builtin_types=(bytes,))),
        "hex": encode(message).hex(),
    }


def _readable() -> list[object]:
    fields = msgspec.to_builtins(SMALL_GROUP, builtin_types=(bytes,))
    task = fields["task"]
    variants = {
        "fields in another order": dict(reversed(fields.items())),
        "defaults spelled out": fields | {"media_type": "text/plain", "behaviour": None},
        "unknown fields": fields | {"task": task | {"split": "train"}, "later": [1.5, {"a": [None, True]}]},
    }
    cases = [
        {"name": name, "message": "RolloutGroupMessage", "hex": msgpack.packb(value).hex()}
        for name, value in variants.items()
    ]
    wide = encode(SMALL_GROUP).replace(
        b"\xaepolicy_version\x03", b"\xd9\x0epolicy_version\xd3" + bytes(7) + b"\x03"
    )
    cases.append(
        {"name": "integers and texts in wider formats", "message": "RolloutGroupMessage", "hex": wide.hex()}
    )
    return [case | {"fields": _jsonable(fields)} for case in cases]


def _envelopes() -> list[object]:
    cases: list[object] = []
    for kind, message in (
        (Kind.ROLLOUT_GROUP, SMALL_GROUP),
        (Kind.NODE_RECORD, NODE_RECORD),
        (Kind.MANIFEST, MESSAGES["manifest"]),
    ):
        body = _body(kind=kind, payload=encode(message))
        cases.append(
            {
                "name": kind.value,
                "author_seed": _SEED.hex(),
                "body": _jsonable(msgspec.to_builtins(body, builtin_types=(bytes,))),
                "hex": seal(body, _sign).hex(),
            }
        )
    return cases


def _refusals() -> list[object]:
    good = seal(_body(), _sign)
    body_bytes, signature = msgpack.unpackb(good)
    newer = msgpack.packb({"version": 2, "from": "somebody", "kind": 7})
    opened = {
        "nothing": (b"", "malformed"),
        "cut off": (good[:-1], "malformed"),
        "a byte too many": (good + b"\x00", "malformed"),
        "an array of three": (msgpack.packb([body_bytes, signature, b""]), "malformed"),
        "body as text": (msgpack.packb(["body", signature]), "malformed"),
        "claims four gigabytes": (b"\x92\xc6\xff\xff\xff\xff", "malformed"),
        "claims four billion items": (b"\xdd\xff\xff\xff\xff", "malformed"),
        "larger than an envelope may be": (b"\x92" + bytes(900_000), "oversized"),
        "a key twice in the body": (_sealed(b"\x82\xa7version\x01\xa7version\x01"), "malformed"),
        "a field missing": (_sealed(msgpack.packb({"version": 1})), "malformed"),
        "author of 31 bytes": (
            _sealed(encode(_body(author=bytes(31)))),
            "malformed",
        ),
        "time below zero": (seal(_body(created_ms=-1), _sign), "malformed"),
        "newer version with other fields": (_sealed(newer), "unsupported_version"),
        "unknown kind": (seal(_body(kind="poem"), _sign), "unknown_kind"),
        "another kind": (seal(_body(kind=Kind.MANIFEST), _sign), "wrong_kind"),
        "another swarm": (seal(_body(swarm_id="5b" * 32), _sign), "wrong_swarm"),
        "a millisecond too old": (seal(_body(created_ms=NOW_MS - MAX_AGE_MS - 1), _sign), "stale"),
        "a millisecond too early": (seal(_body(created_ms=NOW_MS + MAX_SKEW_MS + 1), _sign), "from_future"),
        "signed by another key": (seal(_body(author=_public_key(bytes(32))), _sign), "bad_signature"),
        "signature of 63 bytes": (msgpack.packb([body_bytes, signature[:-1]]), "bad_signature"),
        "signed without the prefix": (msgpack.packb([body_bytes, _sign(body_bytes)]), "bad_signature"),
    }
    return [
        {
            "name": name,
            # A megabyte of zeros is said, not written out.
            **(
                {"hex": data.hex()}
                if len(data) < 1000
                else {"hex": data[:1].hex(), "then_zeros": len(data) - 1}
            ),
            "kind": Kind.ROLLOUT_GROUP.value,
            "swarm_id": SWARM_ID,
            "now_ms": NOW_MS,
            "max_age_ms": MAX_AGE_MS,
            "max_skew_ms": MAX_SKEW_MS,
            "reason": reason,
        }
        for name, (data, reason) in opened.items()
    ]


_SEED = bytes([1]) * 32


def _sign(message: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(_SEED).sign(message)


def _public_key(seed: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


def _body(
    *,
    kind: str = Kind.ROLLOUT_GROUP,
    swarm_id: str = SWARM_ID,
    author: bytes | None = None,
    created_ms: int = NOW_MS,
    payload: bytes | None = None,
) -> EnvelopeBody:
    return EnvelopeBody(
        version=1,
        kind=str(kind),
        swarm_id=swarm_id,
        author=_public_key(_SEED) if author is None else author,
        created_ms=created_ms,
        payload=encode(SMALL_GROUP) if payload is None else payload,
    )


def _sealed(body_bytes: bytes) -> bytes:
    return bytes(msgpack.packb([body_bytes, _sign(SIGNATURE_DOMAIN + body_bytes)]))


def _jsonable(value: object) -> object:
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, dict):
        return {key: _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    return value


if __name__ == "__main__":
    main()
