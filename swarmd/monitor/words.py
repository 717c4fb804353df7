"""Numbers as people read them, and small pictures made of characters. Pure functions on plain values.

Text that came from a peer passes through `printable` before it is shown anywhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

BLOCKS = " ▁▂▃▄▅▆▇█"


def duration(seconds: float) -> str:
    """`45 s`, `2 min 05 s`, `3 h 20 min`, `2 d 4 h`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def size(count: int) -> str:
    """Bytes with a decimal unit: `812 B`, `3.4 MB`."""
    amount = float(count)
    for unit in ("B", "kB", "MB"):
        if amount < 999.5:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"


def reward(value: float | None) -> str:
    """Three decimals, a dash when there is none."""
    return "–" if value is None else f"{value:.3f}"


def many(count: int, noun: str) -> str:
    """`1 peer`, `1,200 peers`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def short_peer_id(peer_id: str) -> str:
    """The end of a peer id. Its beginning is the same for everybody."""
    return f"…{peer_id[-6:]}" if len(peer_id) > 8 else peer_id


def printable(text: str, width: int) -> str:
    """One line of at most `width` characters without control characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= width else f"{line[: max(0, width - 1)]}…"


def bar(share: float, width: int) -> str:
    """A share of 0 to 1 as a bar of `width` characters."""
    filled = round(min(max(share, 0.0), 1.0) * width)
    return "━" * filled + "─" * (width - filled)


def fit(values: Sequence[float], width: int) -> list[float]:
    """Values for `width` columns: means of neighbours when there are more, repeated when there are
    fewer; a handful is left as it is.
    """
    if len(values) < 8:
        return list(values[:width])
    if len(values) <= width:
        return [values[column * len(values) // width] for column in range(width)]
    edges = [position * len(values) // width for position in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]


def sparkline(values: Sequence[float], width: int, height: int = 1) -> list[str]:
    """`height` lines of at most `width` characters, the top line first: columns from 0 to the largest
    value. A value above 0 is never drawn as nothing.
    """
    points = fit(values, width)
    highest = max(points, default=0.0)
    steps = 8 * height
    levels = [0 if point <= 0 or highest <= 0 else max(1, round(point / highest * steps)) for point in points]
    return [
        "".join(BLOCKS[min(8, max(0, level - 8 * row))] for level in levels)
        for row in reversed(range(height))
    ]
