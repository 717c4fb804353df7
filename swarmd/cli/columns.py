"""Plain text in columns, the same with and without a terminal. What peers claim about themselves is
shown without the control characters that could move a cursor or hide a line.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["columns", "counts", "printable", "printable_text", "span"]


def columns(rows: Sequence[Sequence[str]], gap: str = "  ") -> str:
    """Rows of equal length as lines, each column as wide as its longest cell."""
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    lines = (gap.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(line.rstrip() for line in lines)


def printable(text: str) -> str:
    """The text with every character that does not print replaced by a question mark."""
    return "".join(character if character.isprintable() else "?" for character in text)


def printable_text(text: str) -> str:
    """As `printable`, with its lines and tabs as they are."""
    return "".join(character if character in "\n\t" else printable(character) for character in text)


def counts(by_reason: dict[str, int]) -> str:
    """Counts by reason, most frequent first: `stale 3, duplicate 1`."""
    ordered = sorted(by_reason.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{reason} {count}" for reason, count in ordered)


def span(seconds: float) -> str:
    """A duration in its two largest units: `3 d 4 h`, `12 s`."""
    whole = int(seconds)
    for name, size, smaller, part in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {name} {whole % size // part} {smaller}"
    return f"{whole} s"
