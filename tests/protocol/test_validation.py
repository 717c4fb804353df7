"""Each rule of the specification, by a message that breaks only this one."""

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from swarmd_protocol.codec import decode, encode, pack_logprobs
from swarmd_protocol.envelope import SIGNATURE_DOMAIN, EnvelopeBody, EnvelopeLimits, open_envelope
from swarmd_protocol.errors import Reason, Refusal
from swarmd_protocol.messages import (
    BehaviourLogprobs,
    CatchUpRequest,
    CompletionMessage,
    FinishReason,
    Kind,
    ManifestMessage,
    NodeRecordMessage,
    RolloutGroupMessage,
    TaskReference,
)
from swarmd_protocol.text import is_name
from swarmd_protocol.validation import (
    MAX_ADDRESSES,
    MAX_MANIFEST_BYTES,
    GroupLimits,
    RecordLimits,
    check_catch_up_request,
    check_group,
    check_manifest_text,
    check_node_record,
)

from swarmd.identity import Identity, verify

NOW_MS = 1_760_000_000_000
LIMITS = GroupLimits(
    group_size_min=2,
    group_size_max=4,
    max_completion_characters=10,
    max_completion_tokens=3,
    task_digests={"bf": "d1", "arc_1d": "d2"},
    held_out=(1000, 2000),
    max_age_ms=600_000,
    max_skew_ms=60_000,
)


def completion(text: str = "42") -> CompletionMessage:
    return CompletionMessage(text, FinishReason.STOP)


def behaviour(*blocks: bytes, fingerprint: str = "f0") -> BehaviourLogprobs:
    return BehaviourLogprobs(fingerprint, blocks)


GOOD_BLOCK = pack_logprobs([-0.5, -0.25])
GROUP = RolloutGroupMessage(
    group_id=bytes(16),
    task=TaskReference("bf", "d1", seed=2000, index=0),
    completions=(completion(), completion("43")),
    policy_version=3,
    model="tiny",
    created_ms=NOW_MS,
    behaviour=behaviour(GOOD_BLOCK, GOOD_BLOCK),
)


def reason(**changes) -> Reason | None:
    return check_group(msgspec.structs.replace(GROUP, **changes), LIMITS, NOW_MS)


def test_a_group_that_keeps_to_the_manifest_is_accepted():
    assert reason() is None
    assert reason(behaviour=None) is None


@pytest.mark.parametrize("group_id", [b"", bytes(15), bytes(17)])
def test_a_group_id_of_another_length_is_malformed(group_id):
    assert reason(group_id=group_id) is Reason.MALFORMED


@pytest.mark.parametrize("policy_version", [-1, 2**62])
def test_a_policy_version_out_of_range_is_malformed(policy_version):
    assert reason(policy_version=policy_version) is Reason.MALFORMED


def test_another_media_type_is_ignored_before_its_content_is_judged():
    assert reason(media_type="image/png", completions=()) is Reason.UNSUPPORTED_MEDIA_TYPE
    assert Reason.UNSUPPORTED_MEDIA_TYPE.verdict == "ignore"


@pytest.mark.parametrize("model", ["", "m" * 129, "two\nlines", "\x1b[2J", "\u202egnp", "\ud800"])
def test_a_model_name_that_cannot_be_shown_is_bad_text(model):
    assert reason(model=model) is Reason.BAD_TEXT


def test_old_groups_are_stale_and_early_ones_from_the_future():
    assert reason(created_ms=NOW_MS - 600_000) is None
    assert reason(created_ms=NOW_MS - 600_001) is Reason.STALE
    assert reason(created_ms=NOW_MS + 60_000) is None
    assert reason(created_ms=NOW_MS + 60_001) is Reason.FROM_FUTURE
    assert reason(created_ms=-1) is Reason.MALFORMED


@pytest.mark.parametrize(
    "task",
    [
        TaskReference("chess", "d1", 2000, 0),
        TaskReference("bf", "d2", 2000, 0),
        TaskReference("bf", "", 2000, 0),
    ],
)
def test_a_task_that_the_manifest_does_not_have_is_unknown(task):
    assert reason(task=task) is Reason.UNKNOWN_TASK


@pytest.mark.parametrize(("seed", "index"), [(1000, 0), (1999, 0), (0, 1500), (999, 1), (1500, 499)])
def test_a_task_is_held_out_by_seed_and_index_together(seed, index):
    assert reason(task=TaskReference("bf", "d1", seed, index)) is Reason.HELD_OUT_TASK


@pytest.mark.parametrize(
    ("seed", "index"), [(999, 0), (2000, 0), (1500, 500), (0, 0), (2**62 - 1, 2**62 - 1)]
)
def test_tasks_on_both_sides_of_the_held_out_range_are_trained_on(seed, index):
    assert reason(task=TaskReference("bf", "d1", seed, index)) is None


@pytest.mark.parametrize(("seed", "index"), [(-1500, 0), (3000, -1500), (2**62, 0), (2000, 2**62)])
def test_seeds_out_of_range_are_no_way_around_the_held_out_set(seed, index):
    assert reason(task=TaskReference("bf", "d1", seed, index)) is Reason.MALFORMED


@pytest.mark.parametrize("size", [0, 1, 5])
def test_a_group_outside_the_size_bounds_is_refused(size):
    completions = tuple(completion() for _ in range(size))
    assert reason(completions=completions, behaviour=None) is Reason.BAD_GROUP_SIZE


def test_a_completion_is_measured_in_characters():
    assert reason(completions=(completion("🙂" * 10), completion())) is None
    assert reason(completions=(completion(), completion("x" * 11))) is Reason.COMPLETION_TOO_LONG


@pytest.mark.parametrize("bomb", ["e" + chr(0x301) * 31, chr(0xFDFA) * 31], ids=["marks", "ligatures"])
def test_a_completion_that_grows_or_stalls_when_normalised_is_bad_text(bomb):
    completions = (CompletionMessage(bomb, FinishReason.STOP), *GROUP.completions[1:])
    changed = msgspec.structs.replace(GROUP, completions=completions)
    limits = msgspec.structs.replace(LIMITS, max_completion_characters=32)
    assert check_group(changed, limits, NOW_MS) is Reason.BAD_TEXT


def test_a_lone_surrogate_in_a_completion_is_bad_text():
    assert reason(completions=(completion(), completion("\udc80"))) is Reason.BAD_TEXT


def test_control_characters_in_a_completion_are_a_policys_right():
    assert reason(completions=(completion("\x00\x1b\n"), completion(""))) is None


@pytest.mark.parametrize(
    "block",
    [
        b"",
        bytes(6),
        pack_logprobs([-1.0] * 4),
        struct.pack("<f", float("nan")),
        struct.pack("<f", float("-inf")),
        struct.pack("<f", float("inf")),
        struct.pack("<2f", -1.0, 0.01),
    ],
)
def test_blocks_that_are_no_logprobs_are_refused(block):
    assert reason(behaviour=behaviour(GOOD_BLOCK, block)) is Reason.BAD_LOGPROBS


def test_logprobs_come_one_block_for_each_completion():
    assert reason(behaviour=behaviour(GOOD_BLOCK)) is Reason.BAD_LOGPROBS
    assert reason(behaviour=behaviour(GOOD_BLOCK, GOOD_BLOCK, GOOD_BLOCK)) is Reason.BAD_LOGPROBS


def test_a_log_probability_rounded_above_zero_is_forgiven():
    assert reason(behaviour=behaviour(GOOD_BLOCK, pack_logprobs([1e-4]))) is None


def test_a_fingerprint_that_cannot_be_shown_is_bad_text():
    assert reason(behaviour=behaviour(GOOD_BLOCK, GOOD_BLOCK, fingerprint="\x07")) is Reason.BAD_TEXT


wild_integers = st.integers() | st.integers(990, 2010)
wild_texts = st.text(st.characters(), max_size=12) | st.sampled_from(["bf", "d1", "text/plain"])


@given(
    st.builds(
        RolloutGroupMessage,
        group_id=st.binary(min_size=15, max_size=16),
        task=st.builds(TaskReference, wild_texts, wild_texts, wild_integers, wild_integers),
        completions=st.lists(st.builds(CompletionMessage, wild_texts, st.sampled_from(FinishReason))).map(
            tuple
        ),
        policy_version=wild_integers,
        model=wild_texts,
        created_ms=wild_integers | st.just(NOW_MS),
        media_type=wild_texts,
        behaviour=st.none()
        | st.builds(BehaviourLogprobs, wild_texts, st.lists(st.binary(max_size=16)).map(tuple)),
    )
)
def test_any_group_is_accepted_or_has_a_reason(group):
    outcome = check_group(group, LIMITS, NOW_MS)
    assert outcome is None or isinstance(outcome, Reason)


RECORD = NodeRecordMessage(
    name="lab-3",
    model="tiny",
    software="swarmd 0.1.0",
    round=1,
    policy_version=1,
    addresses=("/ip4/192.0.2.7/tcp/31337",),
    created_ms=NOW_MS,
)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"name": "", "model": "", "addresses": ()}, None),
        ({"name": "日本"}, None),
        ({"name": "a\x1b[31m"}, Reason.BAD_TEXT),
        ({"model": "m" * 129}, Reason.BAD_TEXT),
        ({"software": "two\nlines"}, Reason.BAD_TEXT),
        ({"addresses": ("",)}, Reason.BAD_TEXT),
        ({"addresses": ("/ip4/" + "1" * 300,)}, Reason.BAD_TEXT),
        ({"addresses": ("/ip4/192.0.2.7",) * (MAX_ADDRESSES + 1)}, Reason.OVERSIZED),
        ({"round": -1}, Reason.MALFORMED),
        ({"policy_version": 2**62}, Reason.MALFORMED),
        ({"created_ms": NOW_MS - 120_001}, Reason.STALE),
        ({"created_ms": NOW_MS + 60_001}, Reason.FROM_FUTURE),
    ],
)
def test_node_record(changes, expected):
    limits = RecordLimits(max_age_ms=120_000, max_skew_ms=60_000)
    assert check_node_record(msgspec.structs.replace(RECORD, **changes), limits, NOW_MS) is expected


@given(st.text(st.characters(codec=None), max_size=20))
def test_what_is_a_name_can_stand_in_one_line(text):
    if is_name(text):
        assert len(text.splitlines()) == 1
        text.encode()
        assert not any(ord(character) < 32 or 0x7F <= ord(character) < 0xA0 for character in text)


def test_a_manifest_is_measured_in_bytes():
    assert check_manifest_text(ManifestMessage("é" * (MAX_MANIFEST_BYTES // 2))) is None
    assert check_manifest_text(ManifestMessage("é" * (MAX_MANIFEST_BYTES // 2) + "x")) is Reason.OVERSIZED
    assert check_manifest_text(ManifestMessage("\ud800")) is Reason.BAD_TEXT


@pytest.mark.parametrize(
    ("request_message", "expected"),
    [
        (CatchUpRequest("s1", 0, 256, 4_000_000), None),
        (CatchUpRequest("s1", 0, 2**61, 2**61), None),
        (CatchUpRequest("s2", 0, 256, 4_000_000), Reason.WRONG_SWARM),
        (CatchUpRequest("s1", -1, 256, 4_000_000), Reason.MALFORMED),
        (CatchUpRequest("s1", 0, -1, 4_000_000), Reason.MALFORMED),
        (CatchUpRequest("s1", 0, 1, 2**63), Reason.MALFORMED),
    ],
)
def test_catch_up_request(request_message, expected):
    assert check_catch_up_request(request_message, "s1") is expected


AUTHOR = Identity.generate()


@given(st.data())
def test_whatever_a_hostile_author_signs_is_an_outcome(data):
    """From bytes to verdict, with a good signature over a damaged body or a damaged payload."""
    payload = damage(encode(GROUP), data)
    body = EnvelopeBody(1, Kind.ROLLOUT_GROUP, "s1", AUTHOR.public_key, NOW_MS, payload)
    body_bytes = damage(encode(body), data) if data.draw(st.booleans()) else encode(body)
    sealed = encode((body_bytes, AUTHOR.sign(SIGNATURE_DOMAIN + body_bytes)))

    envelope = open_envelope(sealed, verify, EnvelopeLimits("s1", Kind.ROLLOUT_GROUP, 600_000), NOW_MS)
    if isinstance(envelope, Refusal):
        return
    group = decode(envelope.payload, RolloutGroupMessage)
    if isinstance(group, Refusal):
        return
    outcome = check_group(group, LIMITS, NOW_MS)
    assert outcome is None or isinstance(outcome, Reason)


def damage(original: bytes, data: st.DataObject) -> bytes:
    damaged = bytearray(original)
    for _ in range(data.draw(st.integers(0, 3))):
        start = data.draw(st.integers(0, len(damaged)))
        damaged[start : start + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    return bytes(damaged)
