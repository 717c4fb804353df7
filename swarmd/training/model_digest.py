"""Which model a training began with, so that a checkpoint is never continued as another model."""

from __future__ import annotations

import hashlib
from pathlib import Path

from swarmd.errors import TrainingError
from swarmd.models.weight_files import weight_files

__all__ = ["model_digest"]

_SAMPLE_BYTES = 1 << 20


def model_digest(folder: str | Path) -> str:
    """Hex SHA-256 over the files that the model's weights are in: names, sizes, first and last MiB of each.
    Other safetensors files of the folder do not count.

    Large models would take seconds to read whole. Raises TrainingError when there are no weights, and
    ConfigError when some are missing.
    """
    digest = hashlib.sha256()
    try:
        files = sorted(weight_files(Path(folder)))
        if not files:
            raise TrainingError(f"there are no safetensors weights in {folder}")
        for path in files:
            size = path.stat().st_size
            digest.update(f"{path.name} {size}\n".encode())
            with path.open("rb") as file:
                digest.update(file.read(_SAMPLE_BYTES))
                file.seek(max(0, size - _SAMPLE_BYTES))
                digest.update(file.read(_SAMPLE_BYTES))
    except OSError as error:
        raise TrainingError(f"cannot read the model in {folder}: {error.strerror}") from error
    return digest.hexdigest()
