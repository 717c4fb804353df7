"""Decoding hostile bytes: every outcome is a message or a refusal, and nothing large is allocated."""

import struct
import tracemalloc

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from swarmd_protocol.codec import (
    DEFAULT_LIMITS,
    DecodeLimits,
    decode,
    encode,
    pack_logprobs,
    structural_defect,
    unpack_logprobs,
)
from swarmd_protocol.errors import ProtocolError, Reason, Refusal
from swarmd_protocol.messages import (
    BehaviourLogprobs,
    CatchUpReply,
    CatchUpRequest,
    CompletionMessage,
    FinishReason,
    ManifestMessage,
    NodeRecordMessage,
    RolloutGroupMessage,
    TaskReference,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
integers = st.integers(0, 2**62 - 1)
groups = st.builds(
    RolloutGroupMessage,
    group_id=st.binary(min_size=16, max_size=16),
    task=st.builds(TaskReference, texts, texts, integers, integers),
    completions=st.lists(st.builds(CompletionMessage, texts, st.sampled_from(FinishReason)), max_size=5).map(
        tuple
    ),
    policy_version=integers,
    model=texts,
    created_ms=integers,
    media_type=texts,
    behaviour=st.none() | st.builds(BehaviourLogprobs, texts, st.lists(st.binary(max_size=16)).map(tuple)),
)
messages = st.one_of(
    groups,
    st.builds(
        NodeRecordMessage, texts, texts, texts, integers, integers, st.lists(texts).map(tuple), integers
    ),
    st.builds(ManifestMessage, texts),
    st.builds(CatchUpRequest, texts, integers, integers, integers),
    st.builds(CatchUpReply, st.lists(st.binary()).map(tuple), st.none() | texts),
)
A_GROUP = RolloutGroupMessage(
    group_id=bytes(16),
    task=TaskReference("bf", "d" * 64, 5, 6),
    completions=tuple(CompletionMessage("text", FinishReason.STOP) for _ in range(4)),
    policy_version=1,
    model="tiny",
    created_ms=1000,
    behaviour=BehaviourLogprobs("f" * 64, tuple(pack_logprobs([-1.0, -2.0]) for _ in range(4))),
)


@given(messages)
def test_message_survives_the_round_trip(message):
    assert decode(encode(message), type(message)) == message


@given(messages)
def test_two_encodings_of_equal_messages_are_equal(message):
    copy = decode(encode(message), type(message))
    assert encode(copy) == encode(message)


@given(st.binary(max_size=200), st.sampled_from([RolloutGroupMessage, NodeRecordMessage, CatchUpReply]))
def test_random_bytes_give_a_message_or_a_refusal(data, message_type):
    assert isinstance(decode(data, message_type), (message_type, Refusal))


@given(groups, st.data())
def test_mutated_bytes_give_a_message_or_a_refusal(group, data):
    damaged = data.draw(mutations(encode(group)))
    outcome = decode(damaged, RolloutGroupMessage)
    assert isinstance(outcome, (RolloutGroupMessage, Refusal))
    if isinstance(outcome, RolloutGroupMessage):
        # What passes is whole: it can be sent on.
        assert decode(encode(outcome), RolloutGroupMessage) == outcome


@st.composite
def mutations(draw, original: bytes) -> bytes:
    """The original with some bytes changed, cut out, repeated or put in."""
    damaged = bytearray(original)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(damaged)))
        end = min(len(damaged), start + draw(st.integers(0, 8)))
        repeated = bytes(damaged[start:end]) * 2
        damaged[start:end] = draw(st.binary(max_size=8) | st.just(repeated))
    return bytes(damaged)


plain_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | texts
    | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(texts, inner, max_size=20),
    max_leaves=40,
)


@given(plain_values)
def test_walk_passes_whatever_another_library_writes(value):
    limits = DecodeLimits(max_depth=64)
    assert structural_defect(msgpack.packb(value), limits) is None


@given(st.binary(max_size=40))
@example(b"\xc1")
@example(b"\xd4\x01\x00")
@example(b"\x81\x01\x02")
def test_what_passes_the_walk_another_library_reads_to_the_last_byte(data):
    if structural_defect(data, DEFAULT_LIMITS) is None:
        msgpack.unpackb(data, unicode_errors="surrogateescape")


@pytest.mark.parametrize(
    "data",
    [
        b"\xdd\xff\xff\xff\xff",  # array of 2^32 - 1
        b"\xdf\xff\xff\xff\xff",  # map
        b"\xc6\xff\xff\xff\xff",  # bytes
        b"\xdb\xff\xff\xff\xff",  # text
        b"\x81\xa8envelope\xdd\x7f\xff\xff\xff",
        b"\x81\xa7unknown" + b"\xdd\x00\x00\x30\x00" * 200,  # arrays in an unknown field
        b"\xc9\xff\xff\xff\xff\x01",  # extension
    ],
)
def test_claimed_lengths_allocate_nothing(data):
    decode(b"\x80", CatchUpReply)  # the decoder itself is made once
    tracemalloc.start()
    try:
        outcome = decode(data, CatchUpReply)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(outcome, Refusal)
    assert outcome.reason is Reason.MALFORMED
    assert peak_bytes < 50_000


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1x", b"\xdc\x00\x01", b"\xde\x00\x01\xa1x"])
def test_deep_nesting_is_malformed_also_in_an_unknown_field(opening):
    bomb = b"\x82\xa1x" + opening * 100_000 + b"\x00" + b"\xa4toml\xa1x"
    outcome = decode(bomb, ManifestMessage)
    assert outcome == Refusal(Reason.MALFORMED, "nested too deep")


def test_nesting_up_to_the_limit_is_read():
    limits = DecodeLimits(max_depth=3)
    assert structural_defect(b"\x91\x91\x91\x00", limits) is None
    assert structural_defect(b"\x91\x91\x91\x90", limits) == "nested too deep"


def test_values_up_to_the_limit_are_read():
    limits = DecodeLimits(max_items=5)
    assert structural_defect(msgpack.packb([1, 2, 3, 4]), limits) is None
    assert structural_defect(msgpack.packb([1, 2, 3, 4, 5]), limits) == "too many values"
    assert structural_defect(msgpack.packb({"a": 1, "b": 2}), limits) is None
    assert structural_defect(msgpack.packb([{"a": 1, "b": 2}]), limits) == "too many values"


def test_more_bytes_than_the_limit_are_oversized_and_not_looked_at():
    refusal = decode(bytes(101), ManifestMessage, DecodeLimits(max_bytes=100))
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.OVERSIZED


def test_unknown_fields_are_skipped():
    fields = msgpack.unpackb(encode(A_GROUP))
    fields["task"]["split"] = "train"
    fields["later"] = [1.5, {"deeper": [None, True, b"bytes"]}]
    assert decode(msgpack.packb(fields), RolloutGroupMessage) == A_GROUP


@pytest.mark.parametrize(
    "field", ["group_id", "task", "completions", "policy_version", "model", "created_ms"]
)
def test_a_missing_field_is_malformed(field):
    fields = msgpack.unpackb(encode(A_GROUP))
    del fields[field]
    assert_malformed(msgpack.packb(fields))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("group_id", "text"),
        ("task", None),
        ("completions", {"text": "x"}),
        ("completions", [None]),
        ("completions", [{"text": "x", "finish_reason": "exploded"}]),
        ("completions", [{"text": b"x", "finish_reason": "stop"}]),
        ("policy_version", 1.0),
        ("policy_version", True),
        ("policy_version", "1"),
        ("model", None),
        ("behaviour", {"tokenizer_fingerprint": "f", "values": [[-1.0]]}),
    ],
)
def test_a_field_of_another_type_is_malformed(field, value):
    fields = msgpack.unpackb(encode(A_GROUP))
    assert_malformed(msgpack.packb(fields | {field: value}))


@pytest.mark.parametrize("text", [b"\xff", b"\xed\xa0\x80", b"\xc0\x80"])
def test_text_that_is_not_utf8_is_malformed(text):
    good = encode(ManifestMessage("x" * len(text)))
    assert_malformed(good.replace(b"x" * len(text), text), ManifestMessage)


def test_a_key_that_stands_twice_is_malformed():
    assert_malformed(b"\x82\xa4toml\xa1a\xa4toml\xa1b", ManifestMessage)


def test_bytes_after_the_end_are_malformed():
    assert_malformed(encode(A_GROUP) + b"\xc0")


@given(st.integers(0, len(encode(A_GROUP)) - 1))
def test_every_truncation_is_malformed(length):
    assert_malformed(encode(A_GROUP)[:length])


def test_a_lone_surrogate_cannot_be_sent():
    with pytest.raises(ProtocolError, match="ManifestMessage cannot be encoded"):
        encode(ManifestMessage("\ud800"))


def test_an_integer_above_64_bits_cannot_be_sent():
    with pytest.raises(ProtocolError):
        encode(CatchUpRequest("s", 2**64, 1, 1))


@given(st.lists(st.floats(-100, 0, width=32)))
def test_logprobs_survive_the_round_trip(values):
    assert list(unpack_logprobs(pack_logprobs(values))) == values


def test_logprobs_are_little_endian_float32():
    assert pack_logprobs([-0.5, -2.0]) == struct.pack("<f", -0.5) + struct.pack("<f", -2.0)


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), float("inf"), -1e300])
def test_logprobs_that_no_float32_holds_cannot_be_sent(value):
    with pytest.raises(ProtocolError):
        pack_logprobs([-1.0, value])


def test_a_block_of_half_a_float_cannot_be_unpacked():
    with pytest.raises(ProtocolError, match="multiple of 4"):
        unpack_logprobs(bytes(6))


def assert_malformed(data, message_type=RolloutGroupMessage):
    outcome = decode(data, message_type)
    assert isinstance(outcome, Refusal)
    assert outcome.reason is Reason.MALFORMED
