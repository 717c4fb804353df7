"""Mistakes, of two kinds that never mix.

A peer's mistake is a value: a `Refusal` whose `Reason` comes from a closed list and carries a
`Verdict`. Whoever receives it counts it and goes on. Our own mistake, such as a key of the wrong
length, raises `ProtocolError`.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Verdict(StrEnum):
    """What becomes of something a peer sent."""

    ACCEPT = "accept"
    """Use it, pass it on."""
    IGNORE = "ignore"
    """Drop it. An honest peer may send this: it does not count against anybody."""
    REJECT = "reject"
    """Drop it. Only a faulty or hostile peer sends this."""


class Reason(StrEnum):
    """Why something was not accepted. Closed: receivers count by it, so a new one needs a new entry
    in the specification.
    """

    MALFORMED = "malformed"
    """Not the MessagePack that the message type asks for."""
    OVERSIZED = "oversized"
    """Larger than the receiver's limit."""
    BAD_SIGNATURE = "bad_signature"
    """The author did not sign these bytes."""
    WRONG_SWARM = "wrong_swarm"
    """Sealed for another swarm."""
    WRONG_AUTHOR = "wrong_author"
    """Stands under the name of a node that did not write it."""
    WRONG_KIND = "wrong_kind"
    """A known kind that does not belong where it arrived."""
    UNKNOWN_KIND = "unknown_kind"
    """A kind this version does not know."""
    UNSUPPORTED_VERSION = "unsupported_version"
    """A protocol version this implementation does not speak."""
    STALE = "stale"
    """Too old by the author's clock."""
    FROM_FUTURE = "from_future"
    """Further ahead of our clock than the allowed skew."""
    DUPLICATE = "duplicate"
    """Seen before."""
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    """Completions of a modality this node does not read."""
    UNKNOWN_TASK = "unknown_task"
    """Not a task of the manifest, or with another configuration."""
    HELD_OUT_TASK = "held_out_task"
    """From the range reserved for evaluation."""
    BAD_GROUP_SIZE = "bad_group_size"
    """Fewer or more completions than the manifest allows."""
    COMPLETION_TOO_LONG = "completion_too_long"
    """More characters than the manifest allows."""
    BAD_TEXT = "bad_text"
    """Text that is no text: lone surrogates, or control characters where a name is expected."""
    BAD_LOGPROBS = "bad_logprobs"
    """Log-probabilities that do not fit the completions, or are none."""
    NOT_REGENERATED = "not_regenerated"
    """The task could not be generated here."""
    SCORING_FAILED = "scoring_failed"
    """The verifier could not score the group."""
    QUOTA = "quota"
    """The author already has its share of the buffer."""
    QUEUE_FULL = "queue_full"
    """More arrived than this node could look at."""
    RATE_LIMITED = "rate_limited"
    """More messages, bytes or verifier time than one peer's share."""
    FLOODING = "flooding"
    """Many times a peer's share: no honest peer is that hasty."""
    IGNORED = "ignored"
    """From a peer that is not listened to for a while, because of what it sent before."""
    BANNED = "banned"
    """From a peer that this node has closed itself to."""
    VERSION_JUMP = "version_jump"
    """A policy version further ahead than an author can have trained since its last group."""
    TOO_LARGE_TO_PUBLISH = "too_large_to_publish"
    """An own group that fits into no message, not even in parts."""

    @property
    def verdict(self) -> Verdict:
        """IGNORE where an honest peer may be at the bottom of it, else REJECT."""
        return Verdict.IGNORE if self in _HONEST else Verdict.REJECT


# Clocks differ, versions differ, networks repeat and receivers have limits: none of it is malice.
_HONEST = frozenset(
    {
        Reason.UNKNOWN_KIND,
        Reason.UNSUPPORTED_VERSION,
        Reason.STALE,
        Reason.FROM_FUTURE,
        Reason.DUPLICATE,
        Reason.UNSUPPORTED_MEDIA_TYPE,
        Reason.NOT_REGENERATED,
        Reason.SCORING_FAILED,
        Reason.QUOTA,
        Reason.QUEUE_FULL,
        Reason.RATE_LIMITED,
        Reason.IGNORED,
        Reason.BANNED,
        Reason.VERSION_JUMP,
        Reason.TOO_LARGE_TO_PUBLISH,
    }
)


class Refusal(msgspec.Struct, frozen=True):
    """Something from a peer was not accepted. Returned, never raised."""

    reason: Reason
    detail: str = ""
    """For a person, in our words: it never repeats what the peer sent."""

    @property
    def verdict(self) -> Verdict:
        """That of the reason."""
        return self.reason.verdict


class ProtocolError(Exception):
    """Our own mistake: a value that no message can hold. The text is one line for a person."""
