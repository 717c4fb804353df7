"""`swarmd logs`: the end of a node's log, and what is added to it. Follows the file through rotation."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from swarmd.cli.options import HomeOption, chosen_home
from swarmd.errors import SwarmdError

__all__ = ["follow", "last_lines", "logs"]

_POLL_SECONDS = 0.2


def logs(
    home: HomeOption = None,
    follow_on: Annotated[bool, typer.Option("-f", "--follow", help="Go on printing what is added.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="How many of the last lines.")] = 100,
) -> None:
    """Print the last lines of a node's log."""
    path = chosen_home(home).log_file
    if not path.exists():
        raise SwarmdError(f"there is no log at {path}: has a node ever run in this home?")
    position = 0
    found, position = last_lines(path, lines)
    for line in found:
        typer.echo(line)
    if follow_on:
        try:
            for line in follow(path, position):
                typer.echo(line)
        except KeyboardInterrupt:
            return


def last_lines(path: Path, count: int) -> tuple[list[str], int]:
    """The last `count` lines of a file, and the position in bytes after the last whole line."""
    kept: deque[str] = deque(maxlen=count)
    position = 0
    with path.open("rb") as file:
        for raw in file:
            if not raw.endswith(b"\n"):
                break
            position += len(raw)
            kept.append(_text(raw))
    return list(kept), position


def follow(path: Path, position: int, poll_seconds: float = _POLL_SECONDS) -> Iterator[str]:
    """Whole lines as they are added after `position`. A rotated or truncated file starts again at 0."""
    inode = path.stat().st_ino
    while True:
        try:
            found = path.stat()
        except FileNotFoundError:
            time.sleep(poll_seconds)
            continue
        if found.st_ino != inode or found.st_size < position:
            inode, position = found.st_ino, 0
        lines, position = _lines_after(path, position)
        yield from lines
        if not lines:
            time.sleep(poll_seconds)


def _lines_after(path: Path, position: int) -> tuple[list[str], int]:
    lines = []
    with path.open("rb") as file:
        file.seek(position, os.SEEK_SET)
        for raw in file:
            if not raw.endswith(b"\n"):
                break
            position += len(raw)
            lines.append(_text(raw))
    return lines, position


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", errors="replace").rstrip("\r\n")
