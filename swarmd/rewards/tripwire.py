"""Refuses to run text as code in a scoring child. Every scorer that is known to evaluate an answer has a
reader that does not (tasks/expressions.py); this stands behind that, for the one that nobody knows of.

Python tells an audit hook of each piece of code that is to be run by `exec` or `eval`, before it runs; a
hook cannot be taken out. Code of a file comes from a library. Other code is text that was compiled: it may
run only where the library composes it from its own words.
"""

from __future__ import annotations

import collections
import dataclasses
import sys
from types import CodeType

# namedtuple and dataclass compile the classes that a late import defines.
_STANDARD_LIBRARY = (str(collections.__file__), str(dataclasses.__file__))


class EvaluationRefusedError(RuntimeError):
    """Text was about to be run as code."""


@dataclasses.dataclass(frozen=True)
class OwnText:
    """Where a library runs text that it wrote itself."""

    sources: tuple[str, ...] = ()
    """Paths of source files and folders."""
    tools: frozenset[str] = frozenset()
    """Source files that run text for others: who calls them counts in their place."""


def refuse_evaluation(own: OwnText) -> None:
    """From here on `exec` and `eval` of text raise, except where it is a library's own. Cannot be undone."""
    sources = (*_STANDARD_LIBRARY, *own.sources)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event != "exec":
            return
        code = arguments[0]
        is_text = isinstance(code, CodeType) and _is_text(code.co_filename)
        if is_text and not _caller(own.tools).startswith(sources):
            raise EvaluationRefusedError("an answer is never run as code")

    sys.addaudithook(hook)


def _is_text(filename: str) -> bool:
    # Frozen modules are the interpreter's own.
    return filename.startswith("<") and not filename.startswith("<frozen ")


def _caller(tools: frozenset[str]) -> str:
    """The source file of whoever has text run: above this function and the hook, and behind the tools."""
    frame = sys._getframe(2)
    while frame.f_code.co_filename in tools and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_filename
