"""What `make fuzz` runs: that it finds defects, and inputs that once were one."""

from pathlib import Path

import fuzz_messages
import pytest
from fuzz_messages import CHECKS, one_input, write_corpus
from hypothesis import given, settings
from hypothesis import strategies as st

ONCE_FAILED: list[str] = []
"""Inputs in hex, of `make fuzz`. None has failed yet."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder: Path = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    return [path.read_bytes() for path in sorted(folder.iterdir())]


def test_the_corpus_reaches_every_decoder_and_passes_and_so_does_what_once_failed(
    corpus: list[bytes],
) -> None:
    assert {data[0] for data in corpus} == set(range(len(CHECKS) + 2))
    for data in (*corpus, *map(bytes.fromhex, ONCE_FAILED)):
        one_input(data)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_any_input_passes(data: bytes) -> None:
    one_input(data)


def test_a_decoder_that_raises_is_found(corpus: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(data: bytes, message_type: type) -> object:
        raise ValueError("a defect")

    monkeypatch.setattr(fuzz_messages, "decode", broken)
    with pytest.raises(ValueError, match="a defect"):
        one_input(corpus[0])
