"""A look at a model folder that needs no heavy library: files that are torn, empty or foreign are found
before torch is imported.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from swarmd.errors import ConfigError
from swarmd.models.weight_files import read_headers, read_object, weight_files

__all__ = ["check_folder", "has_chat_template", "missing_part"]

_TOKENIZERS = ("tokenizer.json", "vocab.json", "tokenizer.model")


def check_folder(folder: Path) -> None:
    """Raise ConfigError, in one line, when the files of a model cannot be what their names say."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if (folder / name).exists():
            _check_no_code(folder / name, read_object(folder / name))
    for path in weight_files(folder):
        read_headers(path)


def _check_no_code(path: Path, values: dict[str, Any]) -> None:
    """Raise ConfigError for a configuration by which transformers would fetch code, and run it."""
    parts = (values, *(part for part in values.values() if isinstance(part, dict)))
    for key, value in (item for part in parts for item in part.items()):
        # An attention implementation with an owner is a kernel on the hub.
        if "attn_implementation" in key and "/" in str(value):
            raise ConfigError(f"{path} asks for code from elsewhere ({key} {value!r:.80}): do not use it")


def missing_part(folder: Path) -> str | None:
    """What a folder lacks to be a model, None when nothing. Raises ConfigError as `weight_files` does."""
    if not (folder / "config.json").is_file():
        return "config.json"
    if not weight_files(folder):
        pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pt*"))
        return "safetensors weights" + (
            " (there are pickled ones, which can run code and are not loaded)" if pickled else ""
        )
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        return "tokenizer.json"
    return None


def has_chat_template(folder: Path) -> bool:
    """Whether the tokenizer of a folder comes with a chat template."""
    if (folder / "chat_template.jinja").is_file() or (folder / "chat_template.json").is_file():
        return True
    path = folder / "tokenizer_config.json"
    try:
        return path.is_file() and bool(read_object(path).get("chat_template"))
    except ConfigError:
        return False
