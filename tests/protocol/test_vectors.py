"""The golden vectors, both ways, and against the msgpack library as a second implementation."""

import importlib.util
import json
from pathlib import Path

import msgpack
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from swarmd_protocol import messages
from swarmd_protocol.codec import decode, encode
from swarmd_protocol.envelope import EnvelopeBody, EnvelopeLimits, open_envelope, seal
from swarmd_protocol.errors import Refusal
from swarmd_protocol.messages import Kind
from swarmd_protocol.peer_id import peer_id_of, public_key_of
from swarmd_protocol.text import is_plain_text

from swarmd.identity import Identity, verify

VECTORS = Path(__file__).parents[2] / "protocol" / "vectors"


def cases(file: str) -> list[object]:
    read = json.loads((VECTORS / file).read_text(encoding="utf-8"))["cases"]
    return [pytest.param(case, id=case["name"]) for case in read]


def values(jsonable: object) -> object:
    if isinstance(jsonable, dict):
        if jsonable.keys() == {"hex"}:
            return bytes.fromhex(jsonable["hex"])
        return {key: values(item) for key, item in jsonable.items()}
    return [values(item) for item in jsonable] if isinstance(jsonable, list) else jsonable


def message_in(case: dict[str, object]) -> object:
    return msgspec.convert(values(case["fields"]), getattr(messages, str(case["message"])))


@pytest.mark.parametrize("case", cases("messages.json"))
def test_message_encodes_to_its_golden_bytes(case):
    assert encode(message_in(case)).hex() == case["hex"]


@pytest.mark.parametrize("case", [*cases("messages.json"), *cases("readable.json")])
def test_golden_bytes_decode_to_the_message(case):
    decoded = decode(bytes.fromhex(case["hex"]), getattr(messages, case["message"]))
    assert decoded == message_in(case)


@pytest.mark.parametrize("case", cases("messages.json"))
def test_another_msgpack_library_reads_the_same_fields(case):
    assert msgpack.unpackb(bytes.fromhex(case["hex"])) == values(case["fields"])


def test_every_message_type_has_a_golden_vector():
    named = {param.values[0]["message"] for param in cases("messages.json")}
    defined = {name for name in vars(messages) if name.endswith(("Message", "Request", "Reply"))}
    assert named == defined - {"CompletionMessage"}


@pytest.mark.parametrize("case", cases("envelopes.json"))
def test_body_seals_to_its_golden_bytes(case):
    author = identity_from_seed(case["author_seed"])
    assert seal(msgspec.convert(values(case["body"]), EnvelopeBody), author.sign).hex() == case["hex"]


@pytest.mark.parametrize("case", cases("envelopes.json"))
def test_golden_envelope_opens_to_its_payload(case):
    body = msgspec.convert(values(case["body"]), EnvelopeBody)
    limits = EnvelopeLimits(body.swarm_id, Kind(body.kind), max_age_ms=0, max_skew_ms=0)
    envelope = open_envelope(bytes.fromhex(case["hex"]), verify, limits, now_ms=body.created_ms)
    assert not isinstance(envelope, Refusal)
    assert (envelope.kind, envelope.author, envelope.created_ms, envelope.payload) == (
        body.kind,
        body.author,
        body.created_ms,
        body.payload,
    )


@pytest.mark.parametrize("case", cases("refusals.json"))
def test_golden_refusal_has_its_reason(case):
    data = bytes.fromhex(case["hex"]) + bytes(case.get("then_zeros", 0))
    limits = EnvelopeLimits(
        case["swarm_id"], Kind(case["kind"]), max_age_ms=case["max_age_ms"], max_skew_ms=case["max_skew_ms"]
    )
    refusal = open_envelope(data, verify, limits, case["now_ms"])
    assert isinstance(refusal, Refusal)
    assert refusal.reason == case["reason"]


@pytest.mark.parametrize("case", cases("texts.json"))
def test_golden_text_is_plain_or_not(case):
    assert is_plain_text(case["text"]) is case["plain"]


@pytest.mark.parametrize("case", cases("keys.json"))
def test_golden_key_has_its_peer_id_and_file(case, tmp_path):
    public_key = bytes.fromhex(case["public_key"])
    assert identity_from_seed(case["seed"]).public_key == public_key
    assert peer_id_of(public_key) == case["peer_id"]
    assert public_key_of(case["peer_id"]) == public_key
    (tmp_path / "identity.key").write_bytes(bytes.fromhex(case["identity_file"]))
    assert Identity.load(tmp_path / "identity.key").peer_id == case["peer_id"]


def test_make_script_gives_the_committed_files():
    spec = importlib.util.spec_from_file_location("make_vectors", VECTORS / "make.py")
    assert spec is not None
    assert spec.loader is not None
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    assert make.files() == {file.name: file.read_text(encoding="utf-8") for file in VECTORS.glob("*.json")}


def identity_from_seed(seed: str) -> Identity:
    return Identity(Ed25519PrivateKey.from_private_bytes(bytes.fromhex(seed)))
