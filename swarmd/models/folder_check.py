"""A look at a model folder that needs no heavy library: files that are torn, empty or foreign are
found before torch is imported, and so is a model that cannot fit into this machine.
"""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

from swarmd.errors import ConfigError

__all__ = ["check_folder"]

_HEADER_LENGTH = struct.Struct("<Q")
_LONGEST_HEADER_BYTES = 100_000_000
"""The limit of the safetensors format."""


def check_folder(folder: Path, memory_bytes: int | None = None) -> None:
    """Raise ConfigError, in one line, when the files of a model cannot be what their names say.

    `memory_bytes` is what this machine has, found out when it is None.
    """
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if (folder / name).exists():
            _check_object(folder / name)
    weights = sorted(folder.glob("*.safetensors"))
    for path in weights:
        _check_safetensors(path)
    size, memory = sum(path.stat().st_size for path in weights), memory_bytes or _memory_bytes()
    if size > memory and not _has_gpu():
        raise ConfigError(
            f"the model in {folder} has {size / 1e9:.1f} GB of weights and this machine "
            f"{memory / 1e9:.1f} GB of memory: choose a smaller model"
        )


def _check_object(path: Path) -> None:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read {path}: {error}; get the model anew") from error
    if not isinstance(value, dict):
        raise ConfigError(f"cannot read {path}: it holds no JSON object; get the model anew")


def _check_safetensors(path: Path) -> None:
    """Header and length, as the format says; the tensors themselves are read later."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            first = file.read(_HEADER_LENGTH.size)
            length = _HEADER_LENGTH.unpack(first)[0] if len(first) == _HEADER_LENGTH.size else 0
            fits = 0 < length <= min(_LONGEST_HEADER_BYTES, size - _HEADER_LENGTH.size)
            header = json.loads(file.read(length) if fits else b"")
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        expected = _HEADER_LENGTH.size + length + max(ends, default=0)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, AttributeError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise ConfigError(f"{path} is not a safetensors file, or damaged; get the model anew") from error
    if size != expected:
        raise ConfigError(f"{path} has {size} bytes instead of {expected}: it is torn; get the model anew")


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _has_gpu() -> bool:
    """Whether there may be one: torch, which knows, takes seconds to import."""
    return Path("/dev/nvidia0").exists() or Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists()
