import logging
from collections.abc import Iterator

import pytest

from swarmd.generation.vllm_failure import keep_first_failure, read_first_failure


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    """The logger of some module of vLLM."""
    root = logging.getLogger("vllm")
    before = list(root.handlers)
    yield logging.getLogger("vllm.v1.some_module")
    root.handlers[:] = before


def fail(log: logging.Logger, error: Exception) -> None:
    try:
        raise error
    except type(error):
        log.exception("it failed")


def test_first_error_is_kept_in_one_line(log, tmp_path):
    keep_first_failure(tmp_path)
    assert read_first_failure(tmp_path) == ""
    log.error("no exception, and therefore no reason")
    fail(log, ValueError("the cache is too large\nwith many details"))
    fail(log, RuntimeError("something has failed, see above"))
    assert read_first_failure(tmp_path) == "the cache is too large"


def test_error_without_words_is_named(log, tmp_path):
    keep_first_failure(tmp_path)
    fail(log, MemoryError())
    assert read_first_failure(tmp_path) == "MemoryError"


def test_failure_after_the_start_disturbs_nothing(log, tmp_path):
    keep_first_failure(tmp_path / "gone")
    fail(log, ValueError("late"))
    assert read_first_failure(tmp_path / "gone") == ""
