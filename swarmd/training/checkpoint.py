"""Checkpoints on disk: what a trainer needs to go on as if it had never stopped.

A checkpoint is a folder. It is written under another name, made durable, and renamed, so a folder
named `checkpoint-N` was complete once; `manifest.json` in it, written last, holds the SHA-256 of
every file, so damage that came later is noticed. Older checkpoints are removed only after a newer
one is complete, and the one with the best held-out reward stays.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, isfinite

from swarmd.errors import CheckpointError

__all__ = ["Checkpoint", "CheckpointCounters", "CheckpointStore", "SavedCheckpoint"]

_FORMAT = 1
_NAME = re.compile(r"checkpoint-(\d{8,})")
_PARTIAL_PREFIX = ".partial-"
_WEIGHTS = "weights.safetensors"
_OPTIMIZER = "optimizer.safetensors"
_COUNTERS = "counters.json"
_NODE_STATE = "node_state.bin"
_MANIFEST = "manifest.json"
_FILES = (_WEIGHTS, _OPTIMIZER, _COUNTERS, _NODE_STATE)


class CheckpointCounters(msgspec.Struct, frozen=True):
    """The numbers of a trainer, and which model they belong to."""

    model_digest: str
    """Of the model the training began with."""
    round: int
    policy_version: int
    steps: int
    skipped_updates: int
    eval_reward: float | None = None
    """Mean reward on the held-out tasks, as last evaluated before this checkpoint."""


@dataclass(frozen=True)
class Checkpoint:
    """All of one checkpoint, in memory."""

    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    counters: CheckpointCounters
    node_state: bytes
    """What the daemon wants back."""


@dataclass(frozen=True)
class SavedCheckpoint:
    """Where a checkpoint was written, and how large it is."""

    path: Path
    bytes: int


class _FileRecord(msgspec.Struct, frozen=True):
    bytes: int
    sha256: str


class _Format(msgspec.Struct, frozen=True):
    format: int


class _Manifest(msgspec.Struct, frozen=True):
    format: int
    files: dict[str, _FileRecord]


class _DamagedError(Exception):
    """One checkpoint cannot be used; the message says why."""


class CheckpointStore:
    """The checkpoints of one node, in one folder."""

    def __init__(self, folder: Path, keep: int) -> None:
        """Create `folder` and remove what an interrupted save left. Raises CheckpointError."""
        self._folder = folder
        self._keep = keep
        self._damaged: set[Path] = set()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for partial in folder.glob(f"{_PARTIAL_PREFIX}*"):
                shutil.rmtree(partial)
        except OSError as error:
            raise CheckpointError(f"cannot use the checkpoint folder {folder}: {error.strerror}") from error

    def save(self, checkpoint: Checkpoint) -> SavedCheckpoint:
        """Write a new checkpoint, then remove old ones beyond the number to keep and the best.

        Raises CheckpointError when it cannot be written, or holds weights that are not finite: nobody could
        go on from them, and they would displace ones that somebody could. The ones before stay as they were.
        """
        broken = [name for name, tensor in checkpoint.weights.items() if not isfinite(tensor).all()]
        if broken:
            raise CheckpointError(
                f"the weights are not finite ({broken[0]} is one of {len(broken)} such tensors); "
                "the older ones are kept"
            )
        existing = self._numbered()
        number = max(existing, default=0) + 1
        partial = self._folder / f"{_PARTIAL_PREFIX}{os.getpid()}-{number}"
        final = self._folder / f"checkpoint-{number:08d}"
        try:
            partial.mkdir()
            size = _write(partial, checkpoint)
            partial.rename(final)
            _flush(self._folder)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise CheckpointError(
                f"cannot write a checkpoint to {self._folder}: {_reason(error)}; the older ones are kept"
            ) from error
        self._remove_old()
        return SavedCheckpoint(final, size)

    def load_newest(self, model_digest: str) -> tuple[Checkpoint, Path, tuple[str, ...]] | None:
        """The newest intact checkpoint, its path, and one note for each damaged one passed over.

        None when there is no checkpoint. Raises CheckpointError when all are damaged, or when the
        newest intact one is of a model with another digest or in the format of a newer swarmd.
        """
        notes: list[str] = []
        for _, path in sorted(self._numbered().items(), reverse=True):
            try:
                checkpoint = _read(path)
            except _DamagedError as error:
                notes.append(f"{path.name} is damaged ({error}) and was passed over")
                self._damaged.add(path)
                continue
            if checkpoint.counters.model_digest != model_digest:
                raise CheckpointError(
                    f"{path} was made from another model than the one given; use the model it was made "
                    "from, another --home, or move the folder away to begin anew"
                )
            return checkpoint, path, tuple(notes)
        if notes:
            raise CheckpointError(
                f"no checkpoint in {self._folder} can be used: {'; '.join(notes)}; "
                "move the folder away to begin anew"
            )
        return None

    def _numbered(self) -> dict[int, Path]:
        found: dict[int, Path] = {}
        for path in self._folder.iterdir():
            match = _NAME.fullmatch(path.name)
            if match and path.is_dir():
                found[int(match.group(1))] = path
        return found

    def _remove_old(self) -> None:
        # A damaged one does not count as kept: it must not push the last good one out.
        existing = self._numbered()
        good = sorted(number for number, path in existing.items() if path not in self._damaged)
        oldest_kept = good[-self._keep] if len(good) >= self._keep else good[0]
        best = self._best({number: existing[number] for number in good})
        for number, path in existing.items():
            if number < oldest_kept and number != best:
                shutil.rmtree(path, ignore_errors=True)

    def _best(self, good: Mapping[int, Path]) -> int | None:
        """The number of the checkpoint with the highest held-out reward, the newest of equals."""
        rewards = {number: _eval_reward(path) for number, path in good.items()}
        evaluated = [(reward, number) for number, reward in rewards.items() if reward is not None]
        return max(evaluated)[1] if evaluated else None


def _write(folder: Path, checkpoint: Checkpoint) -> int:
    """Fill `folder`, the manifest last, each file flushed to disk. Returns the bytes written."""
    save_file(_contiguous(checkpoint.weights), folder / _WEIGHTS)
    save_file(_contiguous(checkpoint.optimizer), folder / _OPTIMIZER)
    (folder / _COUNTERS).write_bytes(msgspec.json.encode(checkpoint.counters))
    (folder / _NODE_STATE).write_bytes(checkpoint.node_state)
    records = {name: _record(folder / name) for name in _FILES}
    for name in _FILES:
        _flush(folder / name)
    (folder / _MANIFEST).write_bytes(msgspec.json.encode(_Manifest(_FORMAT, records)))
    _flush(folder / _MANIFEST)
    _flush(folder)
    return sum(record.bytes for record in records.values())


def _read(folder: Path) -> Checkpoint:
    """Read and verify. Raises _DamagedError."""
    try:
        data = (folder / _MANIFEST).read_bytes()
        # The format alone first: the other fields of a newer one may look like anything.
        written_as = msgspec.json.decode(data, type=_Format).format
        if written_as > _FORMAT:
            raise CheckpointError(
                f"{folder} is in format {written_as} of a newer swarmd, and this one reads up to "
                f"{_FORMAT}: go on with the newer one, or move the folder away"
            )
        manifest = msgspec.json.decode(data, type=_Manifest)
        for name in _FILES:
            if name not in manifest.files:
                raise _DamagedError(f"{name} is not in its manifest")
            if _record(folder / name) != manifest.files[name]:
                raise _DamagedError(f"{name} does not match its checksum")
        return Checkpoint(
            weights=load_file(folder / _WEIGHTS),
            optimizer=load_file(folder / _OPTIMIZER),
            counters=msgspec.json.decode((folder / _COUNTERS).read_bytes(), type=CheckpointCounters),
            node_state=(folder / _NODE_STATE).read_bytes(),
        )
    except (OSError, SafetensorError, msgspec.MsgspecError, RecursionError) as error:
        raise _DamagedError(_reason(error)) from error


def _eval_reward(folder: Path) -> float | None:
    """The held-out reward noted in a checkpoint; None without one, or where it cannot be read."""
    try:
        return msgspec.json.decode((folder / _COUNTERS).read_bytes(), type=CheckpointCounters).eval_reward
    except (OSError, msgspec.MsgspecError):
        return None


def _record(path: Path) -> _FileRecord:
    with path.open("rb") as file:
        return _FileRecord(os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest())


def _flush(path: Path) -> None:
    """Wait until a file or folder is on the disk, not just in its cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        missing = f": {Path(error.filename).name}" if error.filename else ""
        return error.strerror + missing
    return (str(error) or type(error).__name__).splitlines()[0]
