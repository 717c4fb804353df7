"""What opens is what the author signed, for this swarm and in time; anything else is a refusal."""

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from swarmd_protocol.codec import encode
from swarmd_protocol.envelope import (
    MAX_ENVELOPE_BYTES,
    SIGNATURE_DOMAIN,
    Envelope,
    EnvelopeBody,
    EnvelopeLimits,
    open_envelope,
    seal,
    seal_message,
)
from swarmd_protocol.errors import ProtocolError, Reason, Refusal
from swarmd_protocol.messages import Kind, ManifestMessage

from swarmd.identity import Identity, verify

AUTHOR = Identity.generate()
STRANGER = Identity.generate()
NOW_MS = 1_760_000_000_000
LIMITS = EnvelopeLimits("5a" * 32, Kind.ROLLOUT_GROUP, max_age_ms=600_000, max_skew_ms=60_000)


def body(**changes) -> EnvelopeBody:
    plain = EnvelopeBody(
        version=1,
        kind="rollout_group",
        swarm_id=LIMITS.swarm_id,
        author=AUTHOR.public_key,
        created_ms=NOW_MS,
        payload=b"what was said",
    )
    return msgspec.structs.replace(plain, **changes)


def opened(data: bytes, limits: EnvelopeLimits = LIMITS) -> Envelope | Reason:
    outcome = open_envelope(data, verify, limits, NOW_MS)
    return outcome.reason if isinstance(outcome, Refusal) else outcome


def test_a_sealed_body_opens():
    assert opened(seal(body(), AUTHOR.sign)) == Envelope(
        Kind.ROLLOUT_GROUP, AUTHOR.public_key, NOW_MS, b"what was said"
    )


def test_a_message_is_sealed_in_the_current_version():
    sealed = seal_message(
        ManifestMessage("name"),
        kind=Kind.MANIFEST,
        swarm_id=LIMITS.swarm_id,
        author=AUTHOR.public_key,
        created_ms=0,
        sign=AUTHOR.sign,
    )
    envelope = opened(sealed, EnvelopeLimits(LIMITS.swarm_id, Kind.MANIFEST, max_age_ms=None))
    assert isinstance(envelope, Envelope)
    assert envelope.payload == encode(ManifestMessage("name"))


def test_a_third_node_can_pass_an_envelope_on_in_its_own_outer_encoding():
    body_bytes, signature = msgpack.unpackb(seal(body(), AUTHOR.sign))
    wide = b"\xdc\x00\x02\xc6" + len(body_bytes).to_bytes(4, "big") + body_bytes + b"\xc4\x40" + signature
    assert isinstance(opened(wide), Envelope)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": 2}, Reason.UNSUPPORTED_VERSION),
        ({"version": 0}, Reason.UNSUPPORTED_VERSION),
        ({"kind": "poem"}, Reason.UNKNOWN_KIND),
        ({"kind": "manifest"}, Reason.WRONG_KIND),
        ({"swarm_id": "5b" * 32}, Reason.WRONG_SWARM),
        ({"created_ms": NOW_MS - 600_001}, Reason.STALE),
        ({"created_ms": NOW_MS + 60_001}, Reason.FROM_FUTURE),
        ({"created_ms": -1}, Reason.MALFORMED),
        ({"created_ms": 2**63}, Reason.MALFORMED),
        ({"author": STRANGER.public_key}, Reason.BAD_SIGNATURE),
    ],
)
def test_a_body_that_does_not_belong_here_is_refused(changes, reason):
    assert opened(seal(body(**changes), AUTHOR.sign)) is reason


@pytest.mark.parametrize("created_ms", [NOW_MS - 600_000, NOW_MS + 60_000])
def test_a_time_exactly_at_a_limit_is_in_time(created_ms):
    assert isinstance(opened(seal(body(created_ms=created_ms), AUTHOR.sign)), Envelope)


def test_without_a_maximum_age_any_age_opens():
    timeless = msgspec.structs.replace(LIMITS, max_age_ms=None)
    assert isinstance(opened(seal(body(created_ms=0), AUTHOR.sign), timeless), Envelope)


def test_a_newer_version_is_ignored_even_if_its_other_fields_look_different():
    newer = encode({"version": 9, "from": 17, "kind": None})
    assert opened(encode((newer, bytes(64)))) is Reason.UNSUPPORTED_VERSION


def test_a_version_that_is_no_number_is_malformed():
    assert opened(encode((encode({"version": "1"}), bytes(64)))) is Reason.MALFORMED


def test_a_signature_over_the_bare_body_is_refused():
    body_bytes = encode(body())
    assert opened(encode((body_bytes, AUTHOR.sign(body_bytes)))) is Reason.BAD_SIGNATURE
    assert isinstance(opened(encode((body_bytes, AUTHOR.sign(SIGNATURE_DOMAIN + body_bytes)))), Envelope)


def test_a_signature_of_another_envelope_is_refused():
    _, other_signature = msgpack.unpackb(seal(body(payload=b"other"), AUTHOR.sign))
    assert opened(encode((encode(body()), other_signature))) is Reason.BAD_SIGNATURE


def test_an_envelope_above_the_limit_is_oversized():
    large = seal(body(payload=bytes(MAX_ENVELOPE_BYTES)), AUTHOR.sign)
    assert opened(large) is Reason.OVERSIZED
    fits = seal(body(payload=bytes(MAX_ENVELOPE_BYTES - 400)), AUTHOR.sign)
    assert len(fits) <= MAX_ENVELOPE_BYTES
    assert isinstance(opened(fits), Envelope)


def test_garbage_costs_no_signature_check():
    def never(_public_key: bytes, _signature: bytes, _message: bytes) -> bool:
        raise AssertionError("verified before the cheap checks")

    for data in (b"", seal(body(swarm_id="x"), AUTHOR.sign), encode((encode(body()), b"short"))):
        assert isinstance(open_envelope(data, never, LIMITS, NOW_MS), Refusal)


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data):
    assert isinstance(opened(data), Reason)


@given(st.data())
def test_a_changed_envelope_never_says_something_else(data):
    sealed = bytearray(seal(body(), AUTHOR.sign))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(sealed) - 1))
        sealed[position : position + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    outcome = opened(bytes(sealed))
    assert isinstance(outcome, Reason) or outcome == opened(seal(body(), AUTHOR.sign))


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "version": st.integers(-1, 3),
            "kind": st.text() | st.sampled_from(Kind).map(str) | st.none(),
            "swarm_id": st.text() | st.integers(-(2**63), 2**64 - 1),
            "author": st.binary(max_size=40) | st.none(),
            "created_ms": st.integers(-(2**63), 2**64 - 1) | st.floats(),
            "payload": st.binary(max_size=10) | st.lists(st.integers(0, 9), max_size=3),
        },
    ),
    st.binary(max_size=70),
)
def test_any_body_under_any_signature_is_an_outcome(changes, signature):
    fields = msgpack.unpackb(encode(body())) | changes
    body_bytes = msgpack.packb(fields, unicode_errors="surrogatepass")
    outcome = opened(msgpack.packb([body_bytes, signature]))
    assert isinstance(outcome, Reason)


def test_sealing_with_a_wrong_key_or_signature_is_our_own_mistake():
    with pytest.raises(ProtocolError, match="author must be a key of 32 bytes, got 3"):
        seal(body(author=b"abc"), AUTHOR.sign)
    with pytest.raises(ProtocolError, match="a signature has 64 bytes, got 1"):
        seal(body(), lambda message: b"x")
