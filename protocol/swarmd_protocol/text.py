"""Text from a peer: what is none, and what would grow or stall in the hands of whoever normalises it.

Tokenizers normalise, and so do terminals and data bases. Two things make that costly: long runs of
combining marks, which are sorted, and characters that become many. Both are bounded here; control
characters are the business of whoever shows a text.
"""

from __future__ import annotations

import functools
import re
import unicodedata

MAX_NAME_CHARACTERS = 128
"""Of a node, a model, a program, a tokenizer fingerprint."""
MAX_COMBINING_RUN = 30
"""Combining marks in a row: the Stream-Safe Text Format, Unicode Standard Annex 15, section 13."""
MAX_NORMAL_GROWTH = 4
"""A text may become so many times as long when it is normalised (NFKC). U+FDFA alone becomes 18."""
_COMBINING = range(0x300, 0x20000)
"""All characters with a combining class are among these."""


def is_name(text: str, *, max_characters: int = MAX_NAME_CHARACTERS, allow_empty: bool = False) -> bool:
    """Whether a text can stand in a log line or a table: printable, in one line, not too long."""
    # isprintable is false for control and bidirectional characters, newlines and surrogates.
    return (
        len(text) <= max_characters
        and text.isprintable()
        and (allow_empty or bool(text))
        and is_plain_text(text)
    )


def is_plain_text(text: str) -> bool:
    """Whether a text has no lone surrogates and costs no more to normalise than its length says."""
    if text.isascii():
        return True
    if not is_unicode(text) or _long_combining_run().search(text):
        return False
    return len(unicodedata.normalize("NFKC", text)) <= MAX_NORMAL_GROWTH * len(text)


def is_unicode(text: str) -> bool:
    """Whether a text has no lone surrogates. Decoded bytes never have any; in-memory values may."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@functools.cache
def _long_combining_run() -> re.Pattern[str]:
    marks = "".join(chr(code) for code in _COMBINING if unicodedata.combining(chr(code)))
    return re.compile(f"[{marks}]{{{MAX_COMBINING_RUN + 1}}}")
