"""One finding of `swarmd doctor`."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Finding"]


class Finding(msgspec.Struct, frozen=True):
    """What was looked at, how it stands, and what to do about it."""

    name: str
    level: Literal["ok", "warning", "error"]
    """error: a node cannot start."""
    text: str
    remedy: str = ""
