"""From what a person typed to a folder with a model. Weights are safetensors, never pickles.

What is on disk is used without asking the network; only a model that is not there is downloaded.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from swarmd.errors import ModelNotFoundError
from swarmd.models.catalogue import CATALOGUE, nearest_names
from swarmd.models.folder_check import missing_part

__all__ = ["MANIFEST_KEY", "ModelFolder", "cached_folder", "resolve"]

MANIFEST_KEY = "swarmd_manifest"
"""Key of `config.json` by which a model says which built-in manifest it was made for."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_FILES = ("*.json", "*.safetensors", "*.txt", "*.jinja", "*.model")
_DEFAULT_MANIFEST = "sapo-nine"


@dataclass(frozen=True)
class ModelFolder:
    """A folder that transformers and vLLM load."""

    path: Path
    """Absolute."""
    name: str
    """What peers are told: a known name, a hub id, or the folder's own name."""
    manifest_hint: str
    """Built-in manifest to use when the configuration names none."""


def resolve(name_or_path: str, *, download: bool = True) -> ModelFolder:
    """Find the model: a known name, else a folder, else a hub id. May download, with progress on stderr.

    Raises ModelNotFoundError, in one line, when there is no such model, when the folder holds none,
    or when it would have to be downloaded and cannot be (or `download` is off).
    """
    known = CATALOGUE.get(name_or_path)
    if known is not None and known.folder is not None:
        return ModelFolder(Path(__file__).parent / known.folder, known.name, known.manifest)
    if known is not None and known.hub_id is not None:
        return ModelFolder(_hub_folder(known.hub_id, download), known.name, known.manifest)
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        path = path.resolve()
        return ModelFolder(path, path.name, _checked_manifest(path))
    if _HUB_ID.fullmatch(name_or_path):
        folder = _hub_folder(name_or_path, download)
        return ModelFolder(folder, name_or_path, _checked_manifest(folder))
    raise ModelNotFoundError(
        f"no model {name_or_path!r}: neither a known name, nor a folder, nor a hub id (OWNER/NAME)"
        f"{_suggestion(name_or_path)}"
    )


def cached_folder(hub_id: str) -> Path | None:
    """The folder of a hub model that is on disk already, without using the network."""
    # Imported here because it takes a fifth of a second, which bundled models need not pay.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(hub_id, allow_patterns=list(_HUB_FILES), local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    return folder if missing_part(folder) is None else None


def _hub_folder(hub_id: str, download: bool) -> Path:
    folder = cached_folder(hub_id)
    if folder is None:
        if not download:
            raise ModelNotFoundError(f"model {hub_id} is not on this machine: swarmd model fetch {hub_id}")
        folder = _download(hub_id)
    missing = missing_part(folder)
    if missing is not None:
        raise ModelNotFoundError(f"hub model {hub_id} has no {missing}")
    return folder


def _download(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    unreachable: tuple[type[Exception], ...] = (HfHubHTTPError, OfflineModeIsEnabled, OSError)
    unreachable += _transport_errors()
    try:
        return Path(snapshot_download(hub_id, allow_patterns=list(_HUB_FILES)))
    except GatedRepoError:
        raise ModelNotFoundError(
            f"hub model {hub_id} is gated: accept its terms on the hub and log in with `hf auth login`"
        ) from None
    except RepositoryNotFoundError:
        raise ModelNotFoundError(
            f"no model {hub_id} on the hub, or it is private{_suggestion(hub_id)}"
        ) from None
    except unreachable as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelNotFoundError(
            f"model {hub_id} is not on this machine and the hub cannot be reached ({reason}): "
            "try again, or name a folder or a bundled model (tiny, tiny-weak)"
        ) from None


def _transport_errors() -> tuple[type[Exception], ...]:
    """The base errors of the HTTP client below huggingface_hub: which one it is depends on the version."""
    present = [name for name in ("httpx2", "httpx") if find_spec(name) is not None]
    return tuple(import_module(name).HTTPError for name in present)


def _checked_manifest(folder: Path) -> str:
    missing = missing_part(folder)
    if missing is not None:
        raise ModelNotFoundError(f"folder {folder} holds no model: it has no {missing}")
    try:
        values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelNotFoundError(f"cannot read {folder / 'config.json'}: {error}") from None
    hint = values.get(MANIFEST_KEY) if isinstance(values, dict) else None
    return hint if isinstance(hint, str) else _DEFAULT_MANIFEST


def _suggestion(name: str) -> str:
    near = nearest_names(name)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return "; `swarmd model list` shows the known names"
