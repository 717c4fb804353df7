"""The log of a worker. What else a connection does is seen in test_supervisor, with real processes."""

from pathlib import Path

import pytest

from swarmd.workers import connection
from swarmd.workers.connection import WorkerOutput


def test_a_workers_log_is_rotated_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_LOG_BYTES", 1000)
    output = WorkerOutput(tmp_path / "trainer.log")
    for number in range(100):
        output.write(f"line {number:03}\n".encode() * 20)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trainer.log", "trainer.log.1"]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2500
    assert output.last_line == "line 099"
    assert (tmp_path / "trainer.log").read_text().endswith("line 099\n")


def test_a_log_that_cannot_be_written_costs_its_lines_and_nothing_else(tmp_path: Path) -> None:
    output = WorkerOutput(tmp_path / "missing" / "trainer.log")
    output.write(b"out of memory\nthe rest")
    assert output.last_line == "the rest"
