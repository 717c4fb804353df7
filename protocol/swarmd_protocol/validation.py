"""Whether a decoded message makes sense to this swarm. Pure, and without a look at any task.

An envelope says who; these checks say whether what was said keeps to the manifest. They are cheap:
regenerating the task and scoring come after them. Each returns the reason to refuse, or None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from swarmd_protocol.bounds import check_time, is_counter
from swarmd_protocol.codec import unpack_logprobs
from swarmd_protocol.errors import Reason
from swarmd_protocol.messages import (
    TEXT_PLAIN,
    BehaviourLogprobs,
    CatchUpRequest,
    CompletionMessage,
    ManifestMessage,
    NodeRecordMessage,
    RolloutGroupMessage,
    TaskReference,
)
from swarmd_protocol.text import is_name, is_plain_text

GROUP_ID_BYTES = 16
MAX_ADDRESSES = 16
MAX_ADDRESS_CHARACTERS = 256
MAX_MANIFEST_BYTES = 60_000
"""Of its UTF-8 text. With its envelope it fits into a DHT record of 64 KiB."""
MAX_LOGPROB_NATS = 1e-3
"""A log-probability is at most 0; rounding in the sender's arithmetic is forgiven."""


class GroupLimits(msgspec.Struct, frozen=True):
    """What a swarm's manifest and this node's clock settings allow a rollout group to be."""

    group_size_min: int
    group_size_max: int
    max_completion_characters: int
    max_completion_tokens: int
    """Of a completion's block of log-probabilities, the end token included."""
    task_digests: Mapping[str, str]
    """Dataset -> config digest, for each task of the manifest."""
    held_out: tuple[int, int]
    """Effective seeds (seed + index) from the first up to, not including, the second are reserved."""
    max_age_ms: int
    max_skew_ms: int


class RecordLimits(msgspec.Struct, frozen=True):
    """How old, by its author's clock, a node record may be."""

    max_age_ms: int
    max_skew_ms: int


def check_group(message: RolloutGroupMessage, limits: GroupLimits, now_ms: int) -> Reason | None:
    """Why a rollout group is refused, or None. `now_ms` is wall clock since the Unix epoch."""
    if message.media_type != TEXT_PLAIN:
        return Reason.UNSUPPORTED_MEDIA_TYPE
    if len(message.group_id) != GROUP_ID_BYTES or not is_counter(message.policy_version):
        return Reason.MALFORMED
    if not is_name(message.model):
        return Reason.BAD_TEXT
    return (
        check_time(message.created_ms, limits.max_age_ms, limits.max_skew_ms, now_ms)
        or check_task(message.task, limits)
        or _check_completions(message.completions, limits)
        or _check_behaviour(message.behaviour, len(message.completions), limits)
    )


def check_task(task: TaskReference, limits: GroupLimits) -> Reason | None:
    """Why a task may not be trained on, or None."""
    # Random(-n) equals Random(n): a negative seed would be a second name for a held-out task.
    if not is_counter(task.seed) or not is_counter(task.index):
        return Reason.MALFORMED
    if limits.task_digests.get(task.dataset) != task.config_digest:
        return Reason.UNKNOWN_TASK
    first, end = limits.held_out
    if first <= task.seed + task.index < end:
        return Reason.HELD_OUT_TASK
    return None


def check_node_record(message: NodeRecordMessage, limits: RecordLimits, now_ms: int) -> Reason | None:
    """Why a node record is refused, or None. Its text is safe to show in a terminal."""
    if not is_counter(message.round) or not is_counter(message.policy_version):
        return Reason.MALFORMED
    if len(message.addresses) > MAX_ADDRESSES:
        return Reason.OVERSIZED
    if not all(is_name(text, allow_empty=True) for text in (message.name, message.model, message.software)):
        return Reason.BAD_TEXT
    if not all(is_name(address, max_characters=MAX_ADDRESS_CHARACTERS) for address in message.addresses):
        return Reason.BAD_TEXT
    return check_time(message.created_ms, limits.max_age_ms, limits.max_skew_ms, now_ms)


def check_manifest_text(message: ManifestMessage) -> Reason | None:
    """Why a manifest's text is not worth parsing, or None. Whether it is the swarm's own is decided
    by its digest, which the tasks room computes.
    """
    if not is_plain_text(message.toml):
        return Reason.BAD_TEXT
    return Reason.OVERSIZED if len(message.toml.encode()) > MAX_MANIFEST_BYTES else None


def check_catch_up_request(message: CatchUpRequest, swarm_id: str) -> Reason | None:
    """Why a catch-up request is refused, or None. What it asks for is capped by the server's own limits."""
    if message.swarm_id != swarm_id:
        return Reason.WRONG_SWARM
    if not all(is_counter(value) for value in (message.since_ms, message.max_groups, message.max_bytes)):
        return Reason.MALFORMED
    return None


def _check_completions(completions: tuple[CompletionMessage, ...], limits: GroupLimits) -> Reason | None:
    if not limits.group_size_min <= len(completions) <= limits.group_size_max:
        return Reason.BAD_GROUP_SIZE
    if any(len(completion.text) > limits.max_completion_characters for completion in completions):
        return Reason.COMPLETION_TOO_LONG
    if not all(is_plain_text(completion.text) for completion in completions):
        return Reason.BAD_TEXT
    return None


def _check_behaviour(
    behaviour: BehaviourLogprobs | None, group_size: int, limits: GroupLimits
) -> Reason | None:
    if behaviour is None:
        return None
    if not is_name(behaviour.tokenizer_fingerprint):
        return Reason.BAD_TEXT
    if len(behaviour.values) != group_size:
        return Reason.BAD_LOGPROBS
    if not all(_is_logprobs(block, limits.max_completion_tokens) for block in behaviour.values):
        return Reason.BAD_LOGPROBS
    return None


def _is_logprobs(block: bytes, max_tokens: int) -> bool:
    tokens, odd_bytes = divmod(len(block), 4)
    if odd_bytes or not 1 <= tokens <= max_tokens:
        return False
    values_T = unpack_logprobs(block)
    return all(map(math.isfinite, values_T)) and max(values_T) <= MAX_LOGPROB_NATS
