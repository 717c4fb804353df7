"""The messages that peers exchange, as typed values. What each field means stands in spec/.

Every message is a MessagePack map. A decoder ignores fields it does not know, so a newer minor
version may add fields; it must not change the meaning of one. Values are frozen.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

PROTOCOL_VERSION = 1
TEXT_PLAIN = "text/plain"


class Kind(StrEnum):
    """What an envelope carries. An envelope of an unknown kind is ignored, not rejected."""

    ROLLOUT_GROUP = "rollout_group"
    NODE_RECORD = "node_record"
    MANIFEST = "manifest"


class FinishReason(StrEnum):
    """Why decoding ended: `stop` at the end token, `length` at the token limit."""

    STOP = "stop"
    LENGTH = "length"


class TaskReference(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """Names one procedurally generated task. The receiver regenerates question and answer from it."""

    dataset: str
    config_digest: str
    """Hex digest of (dataset, config, reasoning-gym version), as the manifest computes it."""
    seed: int
    index: int


class CompletionMessage(msgspec.Struct, frozen=True):
    """One sampled completion, as decoded text without special tokens."""

    text: str
    finish_reason: FinishReason


class BehaviourLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities (nats) of the sampled tokens under the policy that sampled them.

    Useful only to a receiver whose tokenizer has the same fingerprint; anybody else ignores it.
    """

    tokenizer_fingerprint: str
    values: tuple[bytes, ...]
    """Per completion, little-endian float32, one per token, the end token included when it stopped."""


class RolloutGroupMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """One task with all completions that one policy sampled for it."""

    group_id: bytes
    """16 random bytes; unique per author."""
    task: TaskReference
    completions: tuple[CompletionMessage, ...]
    policy_version: int
    model: str
    created_ms: int
    """Wall clock of the author, milliseconds since the Unix epoch, UTC."""
    media_type: str = TEXT_PLAIN
    behaviour: BehaviourLogprobs | None = None


class NodeRecordMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node says about itself in the DHT. It is a claim, signed by the node, that expires."""

    name: str
    model: str
    software: str
    round: int
    policy_version: int
    addresses: tuple[str, ...]
    created_ms: int


class ManifestMessage(msgspec.Struct, frozen=True):
    """The swarm's manifest as its TOML text. The receiver checks it against the swarm id."""

    toml: str


class CatchUpRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Asks a peer for sealed envelopes of rollout groups it holds, newest first."""

    swarm_id: str
    since_ms: int
    max_groups: int
    max_bytes: int


class CatchUpReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """Sealed envelopes, each still signed by its author; checked like any other by the receiver."""

    envelopes: tuple[bytes, ...] = ()
    refused: str | None = None
