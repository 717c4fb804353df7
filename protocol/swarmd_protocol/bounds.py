"""Bounds on the numbers in messages, shared by the envelope and by what it carries."""

from __future__ import annotations

from swarmd_protocol.errors import Reason

MAX_COUNTER = 2**62
"""Seeds, indices, rounds, versions and times are below this, so that sums stay within 64 bits."""


def is_counter(value: int) -> bool:
    """Whether a number is in the range that the protocol gives to integers."""
    return 0 <= value < MAX_COUNTER


def check_time(created_ms: int, max_age_ms: int | None, max_skew_ms: int, now_ms: int) -> Reason | None:
    """Why a claimed creation time is refused, or None. Exactly at a limit is in time.

    All in milliseconds; times since the Unix epoch. `max_age_ms` None: of any age.
    """
    if not is_counter(created_ms):
        return Reason.MALFORMED
    if created_ms > now_ms + max_skew_ms:
        return Reason.FROM_FUTURE
    if max_age_ms is not None and created_ms < now_ms - max_age_ms:
        return Reason.STALE
    return None
