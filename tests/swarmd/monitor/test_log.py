"""The node's log: one line per event, whatever is in it; repeats are counted, not written."""

import contextlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarmd.monitor.log import RepeatFilter, set_up_log


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger("swarmd")
    before = (list(root.handlers), root.level, list(own.filters), own.level)
    yield
    for handler in root.handlers:
        if handler not in before[0]:
            # What a full disk never took is still in the file's buffer.
            with contextlib.suppress(OSError):
                handler.close()
    root.handlers[:], own.filters[:] = before[0], before[2]
    root.setLevel(before[1])
    own.setLevel(before[3])


def set_up(path: Path, **changes: object) -> logging.Logger:
    settings: dict[str, object] = {
        "level": "info",
        "max_bytes": 10_000,
        "json_lines": False,
        "to_stderr": False,
    }
    set_up_log(path, **(settings | changes))  # type: ignore[arg-type]
    return logging.getLogger("swarmd")


def test_a_peers_text_cannot_break_a_line_or_move_the_cursor(tmp_path: Path) -> None:
    log = set_up(tmp_path / "node.log")
    log.warning("peer %s", "evil\n2026 info forged \x1b[2J\u202e")
    lines = (tmp_path / "node.log").read_text().splitlines()
    assert len(lines) == 1
    assert "\x1b" not in lines[0]
    assert "\u202e" not in lines[0]


def test_json_lines_are_json(tmp_path: Path) -> None:
    set_up(tmp_path / "node.log", json_lines=True).info("round %d", 3)
    entry = json.loads((tmp_path / "node.log").read_text())
    assert (entry["level"], entry["message"]) == ("info", "round 3")


def test_the_log_is_rotated_and_bounded(tmp_path: Path) -> None:
    log = set_up(tmp_path / "node.log", max_bytes=2000)
    for number in range(1000):
        log.info("line %d of some length, so that the files fill up", number)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["node.log", "node.log.1", "node.log.2", "node.log.3"]
    assert sum(file.stat().st_size for file in files) <= 4 * 2000


def test_the_level_is_kept(tmp_path: Path) -> None:
    log = set_up(tmp_path / "node.log", level="warning")
    log.info("not this")
    log.warning("this")
    assert "not this" not in (tmp_path / "node.log").read_text()
    assert "this" in (tmp_path / "node.log").read_text()


def test_a_full_disk_costs_log_lines_and_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    log = set_up(Path("/dev/full"), max_bytes=0)
    log.info("one")
    log.info("two")
    assert capsys.readouterr().err.count("the log cannot be written") == 1


def test_limited_lines_are_written_once_a_while_with_a_count() -> None:
    now = [0.0]
    repeat = RepeatFilter(clock=lambda: now[0])

    def passes(peer: str, limited: bool = True) -> str | None:
        record = logging.LogRecord("swarmd", logging.INFO, "", 0, "refused %s", (peer,), None)
        if limited:
            record.limited = True
        return record.getMessage() if repeat.filter(record) else None

    assert passes("a") == "refused a"
    assert passes("a") is None
    assert passes("a") is None
    assert passes("b") == "refused b"
    assert passes("a", limited=False) == "refused a"
    now[0] = 31.0
    assert passes("a") == "refused a (2 more like this)"
    assert passes("a") is None
