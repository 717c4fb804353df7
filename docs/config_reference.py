"""mkdocs hook: writes the configuration tables from the config types, so that the page cannot be old."""

from __future__ import annotations

import re
import typing
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from swarmd.config import Config

MARK = "<!-- config-reference -->"
_BOUNDS = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for each page; fills the mark where it stands."""
    return markdown.replace(MARK, reference()) if MARK in markdown else markdown


def reference() -> str:
    """All sections as Markdown: a heading, its sentence, and a table of its keys."""
    return "\n\n".join(_section(name, info) for name, info in Config.model_fields.items())


def _section(name: str, info: FieldInfo) -> str:
    section = typing.cast("type[BaseModel]", info.annotation)
    lines = [
        f"## {name}",
        "",
        (section.__doc__ or "").strip(),
        "",
        "| key | type | default | meaning |",
        "| --- | --- | --- | --- |",
    ]
    for key, field in section.model_fields.items():
        meaning = _cell(field.description or "")
        lines.append(f"| `{key}` | {_type(field)} | `{_default(field.default)}` | {meaning} |")
    return "\n".join(lines)


def _type(field: FieldInfo) -> str:
    annotation = field.annotation
    if typing.get_origin(annotation) is typing.Literal:
        return " or ".join(f"`{choice}`" for choice in typing.get_args(annotation))
    if typing.get_origin(annotation) is tuple:
        return "list of texts"
    words = {str: "text", int: "whole number", float: "number", bool: "`true` or `false`"}
    word = words[typing.cast("type", annotation)]
    bounds = [
        f"{sign} {getattr(rule, name):g}"
        for rule in field.metadata
        for name, sign in _BOUNDS
        if getattr(rule, name, None) is not None
    ]
    return ", ".join([word, *bounds])


def _default(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(f'"{item}"' for item in value) + "]"
    return f'"{value}"' if isinstance(value, str) else f"{value}"


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")
