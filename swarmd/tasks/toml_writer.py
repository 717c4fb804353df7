"""Writes TOML. The standard library only reads it, and a manifest needs no more than this:
tables, arrays of tables, and inline values. Promises that `tomllib.loads` gives the same values back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def write_toml(tables: Mapping[str, object]) -> str:
    """TOML text of nested mappings whose leaves are str, bool, int, float, list or tuple.

    Mappings at the top become tables and lists of mappings arrays of tables; deeper ones are inline.
    """
    lines = [f"{_key(key)} = {_inline(value)}" for key, value in tables.items() if not _is_table(value)]
    for key, value in tables.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{_key(key)}]", *_body(value)]
        elif _is_table(value) and isinstance(value, list | tuple):
            for item in value:
                lines += ["", f"[[{_key(key)}]]", *_body(item)]
    return "\n".join(lines) + "\n"


def _body(table: Mapping[str, object]) -> list[str]:
    return [f"{_key(key)} = {_inline(value)}" for key, value in table.items()]


def _is_table(value: object) -> bool:
    if isinstance(value, list | tuple):
        return len(value) > 0 and all(isinstance(item, Mapping) for item in value)
    return isinstance(value, Mapping)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _string(key)


def _inline(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _string(value)
        case int():
            return str(value)
        case float():
            return repr(value)
        case list() | tuple():
            return "[" + ", ".join(_inline(item) for item in value) + "]"
        case Mapping():
            inner = ", ".join(f"{_key(key)} = {_inline(item)}" for key, item in value.items())
            return "{ " + inner + " }" if inner else "{}"
        case _:
            raise TypeError(f"no TOML form for {type(value).__name__}")


def _string(text: str) -> str:
    # A JSON string is a TOML basic string. What does not print is escaped too: a terminal would obey it.
    return "".join(
        character if character.isprintable() else f"\\U{ord(character):08X}"
        for character in json.dumps(text, ensure_ascii=False)
    )
