"""From what a person typed to a folder with a model. Weights are safetensors, never pickles.

What is on disk is used without asking the network; only a model that is not there is downloaded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from swarmd.errors import ConfigError, ModelNotFoundError
from swarmd.models.catalogue import CATALOGUE, nearest_names
from swarmd.models.folder_check import missing_part
from swarmd.models.weight_files import read_object

if TYPE_CHECKING:
    from swarmd.models.hub import OnProgress

__all__ = ["MANIFEST_KEY", "ModelFolder", "cached_folder", "resolve"]

MANIFEST_KEY = "swarmd_manifest"
"""Key of `config.json` by which a model says which built-in manifest it was made for."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
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


def resolve(name_or_path: str, on_progress: OnProgress | None = None) -> ModelFolder:
    """Find the model: a known name, else a folder, else a hub id.

    With `on_progress` a model that is not on disk is downloaded, and its progress told (see
    `hub.OnProgress`).

    Raises, in one line, ModelNotFoundError when there is no such model or it is none that can be loaded,
    and HubError when it has to be downloaded and cannot be.
    """
    known = CATALOGUE.get(name_or_path)
    if known is not None and known.folder is not None:
        return ModelFolder(Path(__file__).parent / known.folder, known.name, known.manifest)
    if known is not None and known.hub_id is not None:
        return ModelFolder(_hub_folder(known.hub_id, on_progress), known.name, known.manifest)
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        path = path.resolve()
        return ModelFolder(path, path.name, _checked_manifest(path))
    if _HUB_ID.fullmatch(name_or_path):
        folder = _hub_folder(name_or_path, on_progress)
        return ModelFolder(folder, name_or_path, _checked_manifest(folder))
    raise ModelNotFoundError(
        f"no model {name_or_path!r}: neither a known name, nor a folder, nor a hub id (OWNER/NAME)"
        f"{_suggestion(name_or_path)}"
    )


def cached_folder(hub_id: str) -> Path | None:
    """The folder of a hub model that is wholly on disk, found without using the network."""
    # Imported here because it takes a fifth of a second, which bundled models need not pay.
    from swarmd.models import hub

    return hub.cached_folder(hub_id)


def _hub_folder(hub_id: str, on_progress: OnProgress | None) -> Path:
    folder = cached_folder(hub_id)
    if folder is not None:
        return folder
    if on_progress is None:
        raise ModelNotFoundError(f"model {hub_id} is not on this machine: swarmd model fetch {hub_id}")
    from swarmd.models import hub

    try:
        return hub.fetch(hub_id, on_progress)
    except ModelNotFoundError as error:
        near = nearest_names(hub_id)
        raise ModelNotFoundError(f"{error}{_suggestion(hub_id) if near else ''}") from None


def _checked_manifest(folder: Path) -> str:
    missing = missing_part(folder)
    if missing is not None:
        raise ModelNotFoundError(f"folder {folder} holds no model: it has no {missing}")
    try:
        hint = read_object(folder / "config.json").get(MANIFEST_KEY)
    except ConfigError as error:
        raise ModelNotFoundError(str(error)) from None
    return hint if isinstance(hint, str) else _DEFAULT_MANIFEST


def _suggestion(name: str) -> str:
    near = nearest_names(name)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return "; `swarmd model list` shows the known names"
