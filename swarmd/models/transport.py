"""The errors of the HTTP client below huggingface_hub: which one it is depends on the version."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

__all__ = ["TRANSPORT_ERRORS", "first_line"]

TRANSPORT_ERRORS: tuple[type[Exception], ...] = tuple(
    import_module(name).HTTPError for name in ("httpx2", "httpx") if find_spec(name) is not None
)
"""What they have in common, for each client that is installed."""


def first_line(error: Exception) -> str:
    """The first line of what an error says."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
