"""Text from a peer: normalising it, which tokenizers do, costs no more than its length says."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swarmd_protocol.text import MAX_COMBINING_RUN, MAX_NORMAL_GROWTH, is_name, is_plain_text

ACUTE, DOT_BELOW = chr(0x301), chr(0x323)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("", True),
        ("tab\t, newline\n and " + chr(0), True),
        ("日本語 हिन्दी العربية Ελληνικά 🦊", True),
        ("e" + ACUTE * MAX_COMBINING_RUN, True),
        ("e" + ACUTE * (MAX_COMBINING_RUN + 1), False),
        ("e" + (ACUTE + DOT_BELOW) * 5_000, False),
        (chr(0xFDFA), False),
        ("a" * 20 + chr(0xFDFA), True),
        (chr(0xFDFA) * 1_000, False),
        (chr(0x2026) * 1_000, True),
        (chr(0xD800), False),
    ],
)
def test_text_that_would_grow_or_stall_is_none(text: str, plain: bool) -> None:
    assert is_plain_text(text) is plain


@given(st.text(st.characters(codec="utf-8"), max_size=50))
def test_what_passes_grows_no_more_than_said(text: str) -> None:
    if is_plain_text(text):
        assert len(unicodedata.normalize("NFKC", text)) <= MAX_NORMAL_GROWTH * len(text)


def test_a_name_is_plain_too() -> None:
    assert is_name("é" + ACUTE)
    assert not is_name("e" + ACUTE * 31)
