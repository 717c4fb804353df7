"""Which files of a model folder hold its weights, and what their headers say. Safetensors only: a header is
JSON, and reading it runs nothing. Needs no heavy library and does not read the tensors.
"""

from __future__ import annotations

import json
import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarmd.errors import ConfigError

__all__ = ["INDEX", "SINGLE", "TensorHeader", "indexed_files", "read_headers", "read_object", "weight_files"]

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_HEADER_LENGTH = struct.Struct("<Q")
_LONGEST_HEADER_BYTES = 32_000_000
"""The format allows 100 MB, which takes gigabytes to parse. A file of ten thousand tensors needs one."""
_LONGEST_JSON_BYTES = 64_000_000
"""Twice the largest tokenizer in use."""
_MOST_DIMENSIONS = 8
_LEAST_BITS = 4
"""Of a number in a tensor."""


@dataclass(frozen=True)
class TensorHeader:
    """One tensor of a file."""

    shape: tuple[int, ...]
    size_bytes: int

    @property
    def count(self) -> int:
        """Numbers in it."""
        return math.prod(self.shape)


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The files that hold the weights: the single one, else those that the index names. Empty: none.

    Raises ConfigError when the index names a file outside the folder, or one that is not there.
    """
    if (folder / SINGLE).is_file():
        return (folder / SINGLE,)
    if not (folder / INDEX).is_file():
        return ()
    files = tuple(folder / name for name in indexed_files(read_object(folder / INDEX), str(folder / INDEX)))
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        raise ConfigError(
            f"{folder} lacks {len(missing)} of its {len(files)} weight files, such as {missing[0]}; "
            "get the model anew"
        )
    return files


def indexed_files(index: dict[str, Any], source: str) -> tuple[str, ...]:
    """Names of the weight files in an index. Raises ConfigError when it is none, or names other files."""
    names = index.get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise ConfigError(f"{source} is no index of safetensors weights; get the model anew")
    for name in names.values():
        # Whoever wrote the index could have any file of this machine read, or written over.
        if "/" in name or "\\" in name or not name.endswith(".safetensors") or name.startswith("."):
            raise ConfigError(
                f"{source} names {name!r} as a file of weights, which is none inside the model; do not use it"
            )
    return tuple(sorted(set(names.values())))


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises ConfigError, in one line, when it holds none."""
    try:
        if path.stat().st_size > _LONGEST_JSON_BYTES:
            raise ConfigError(f"{path} is larger than {_LONGEST_JSON_BYTES} bytes: do not use it")
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read {path}: {error}; get the model anew") from error
    if not isinstance(value, dict):
        raise ConfigError(f"cannot read {path}: it holds no JSON object; get the model anew")
    return value


def read_headers(path: Path) -> dict[str, TensorHeader]:
    """The tensors that a safetensors file holds, by name.

    Raises ConfigError when it is none, or when its length is not what its header says.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            first = file.read(_HEADER_LENGTH.size)
            length = _HEADER_LENGTH.unpack(first)[0] if len(first) == _HEADER_LENGTH.size else 0
            fits = 0 < length <= min(_LONGEST_HEADER_BYTES, size - _HEADER_LENGTH.size)
            header = json.loads(file.read(length) if fits else b"")
        ends = [0]
        tensors = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            start, end = entry["data_offsets"]
            tensors[name] = _tensor(entry.get("shape", ()), end - start)
            ends.append(end)
        expected = _HEADER_LENGTH.size + length + max(ends)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, AttributeError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise ConfigError(f"{path} is not a safetensors file, or damaged; get the model anew") from error
    if size != expected:
        raise ConfigError(f"{path} has {size} bytes instead of {expected}: it is torn; get the model anew")
    return tensors


def _tensor(shape: Any, size_bytes: int) -> TensorHeader:
    """Raises ValueError for a shape that is none, or that needs more than these bytes."""
    sizes = tuple(shape)
    if len(sizes) > _MOST_DIMENSIONS or not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise ValueError("not a shape")
    tensor = TensorHeader(sizes, size_bytes)
    if _LEAST_BITS * tensor.count > 8 * size_bytes:
        raise ValueError("larger than its bytes")
    return tensor
