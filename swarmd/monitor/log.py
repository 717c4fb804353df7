"""The node's log: one line per event, in a rotated file, and on stderr where nobody draws a screen.
Lines that repeat are held back and counted, so that one noisy peer cannot hide a fault.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path

from swarmd.errors import HomeError

OLD_FILES = 3
REPEAT_SECONDS = 30.0
"""The same message template with the same first argument is written once in this time."""
MAX_REMEMBERED = 4096


class RepeatFilter(logging.Filter):
    """Passes the first of a kind, then one per `REPEAT_SECONDS` with the number held back.

    Records of one kind have the same template and first argument (the peer, the address). Only
    records logged with `extra={"limited": True}` are held back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written."""
        if not getattr(record, "limited", False):
            return True
        first = str(record.args[0]) if isinstance(record.args, tuple) and record.args else ""
        key = (str(record.msg), first)
        now = self._clock()
        written_at, held_back = self._seen.get(key, (-REPEAT_SECONDS, 0))
        if now - written_at < REPEAT_SECONDS:
            self._seen[key] = (written_at, held_back + 1)
            return False
        if len(self._seen) >= MAX_REMEMBERED:
            self._seen.clear()
        self._seen[key] = (now, 0)
        if held_back:
            record.msg = f"{record.msg} ({held_back} more like this)"
        return True


class TextFormatter(logging.Formatter):
    """`2026-01-31 12:00:00 warning message`, in UTC. An exception is told in one line."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        stamp = self.formatTime(record, "%Y-%m-%d %H:%M:%S")
        return f"{stamp} {record.levelname.lower():7} {one_line(record.getMessage())}"


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (seconds since the Unix epoch), level, message."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        return json.dumps(
            {
                "time": round(record.created, 3),
                "level": record.levelname.lower(),
                "message": one_line(record.getMessage()),
            }
        )


def one_line(text: str) -> str:
    """Text that cannot break a log: printable, in one line. A peer may have written part of it."""
    return "".join(character if character.isprintable() else " " for character in text)


def set_up_log(path: Path, *, level: str, max_bytes: int, json_lines: bool, to_stderr: bool) -> None:
    """Direct this process's log to `path`, rotated at `max_bytes`, and to stderr if asked.

    Raises HomeError when the file cannot be opened.
    """
    formatter = JsonFormatter() if json_lines else TextFormatter()
    try:
        file = _QuietFileHandler(path, maxBytes=max_bytes, backupCount=OLD_FILES)
    except OSError as error:
        raise HomeError(f"log file {path} cannot be opened ({error.strerror}): move it away") from error
    handlers: list[logging.Handler] = [file]
    if to_stderr:
        handlers.append(logging.StreamHandler(sys.stderr))
    root = logging.getLogger()
    root.handlers.clear()
    repeat = RepeatFilter()
    for handler in handlers:
        handler.setFormatter(formatter)
        root.addHandler(handler)
    # One filter on the logger's own records: a record is counted once, not once per handler.
    swarmd_log = logging.getLogger("swarmd")
    swarmd_log.filters.clear()
    swarmd_log.addFilter(repeat)
    set_log_level(level)
    root.setLevel(logging.WARNING)


def set_log_level(level: str) -> None:
    """Log swarmd's own records from this level on: debug, info, warning or error."""
    logging.getLogger("swarmd").setLevel(level.upper())


class _QuietFileHandler(RotatingFileHandler):
    """A full disk costs log lines, never the node; and it is said once, on stderr."""

    _told = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802, its name is logging's
        """Called in place of raising. Says the first failure."""
        if not self._told:
            self._told = True
            print(f"swarmd: the log cannot be written: {sys.exc_info()[1]}", file=sys.stderr)
