"""What is kept of peers over a run: written in one step, and never over what a newer swarmd wrote."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

__all__ = ["replace_file", "set_aside"]


def replace_file(path: Path, value: object) -> None:
    """Write `value` as JSON, so that a reader sees the old file or the new one.

    Raises OSError, leaving the old one.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(value)))
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def set_aside(path: Path, written_as: int, known: int) -> str:
    """Move away a file in the format of a newer swarmd, for that one to find again. Returns a line about it.

    Where it cannot be moved it stays, and the line says so.
    """
    aside = path.with_name(f"{path.name}.newer")
    what = f"{path} is in format {written_as} of a newer swarmd, and this one reads up to {known}"
    try:
        path.replace(aside)
    except OSError as error:
        return f"{what}: it is not used, and cannot be moved away ({error.strerror or error})"
    return f"{what}: it is kept as {aside.name}, and begun anew"
