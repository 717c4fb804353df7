"""Models from the Hugging Face hub, in the cache that all its libraries share.

A download goes on where it was broken off. A file gets its name in the cache only when its hash is the one
the hub announced, and the model counts as here only when all its files do, so nothing half-written is
ever used. Only what a model needs is fetched: safetensors, configuration, tokenizer; no pickles, no code.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, hf_hub_download, hf_hub_url, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    IncompleteSnapshotError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)
from huggingface_hub.file_download import http_get, repo_folder_name
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

from swarmd.errors import ConfigError, HubError, ModelNotFoundError
from swarmd.models.folder_check import missing_part
from swarmd.models.transport import TRANSPORT_ERRORS, first_line
from swarmd.models.weight_files import INDEX, SINGLE, indexed_files, read_object

__all__ = ["OnProgress", "cached_folder", "drop_damaged", "fetch"]

ANSWER_SECONDS = 5.0
"""The hub's first answer; later, and it counts as not reachable."""
_CHUNK_BYTES = 1 << 20
_SPARE_BYTES = 100_000_000
"""Left free on the disk."""
_SUFFIXES = (".json", ".txt", ".jinja", ".model")

OnProgress = Callable[[str, int, int], None]
"""Called with the file's name, and the bytes there are and will be, of all files together."""


@dataclass(frozen=True)
class _File:
    """One file to fetch."""

    name: str
    size: int
    sha256: str | None
    """Of large files."""
    git_sha1: str | None

    @property
    def digest(self) -> str:
        """What the cache names it by: the hub's ETag."""
        return self.sha256 or self.git_sha1 or ""

    def matches(self, path: Path) -> bool:
        """Whether a file is this one, by its hash."""
        digest = hashlib.sha256() if self.sha256 else hashlib.sha1(b"blob %d\0" % self.size)
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
        return digest.hexdigest() == self.digest


def cached_folder(hub_id: str) -> Path | None:
    """The folder of a model that is wholly on disk, found without the network."""
    try:
        folder = Path(snapshot_download(hub_id, cache_dir=constants.HF_HUB_CACHE, local_files_only=True))
    except IncompleteSnapshotError:
        # Of a repository that also holds what no model needs.
        folder = _newest_snapshot(hub_id)
    except (LocalEntryNotFoundError, HFValidationError):
        return None
    try:
        return folder if missing_part(folder) is None else None
    except ConfigError:
        return None


def fetch(hub_id: str, on_progress: OnProgress) -> Path:
    """Download what is missing of a model, check everything, and return its folder.

    Raises, in one line, ModelNotFoundError when there is no such model or it has no safetensors weights,
    and HubError when the hub cannot be reached or refuses, the disk is full, or a file is damaged.
    """
    logging.getLogger("huggingface_hub").setLevel(
        logging.ERROR
    )  # It tells of every attempt; the last one is told by us.
    with _told(hub_id):
        info = HfApi(endpoint=constants.ENDPOINT).model_info(
            hub_id, files_metadata=True, timeout=ANSWER_SECONDS
        )
        # What lies in folders, such as weights for other programs, is not needed.
        files = {s.rfilename: _announced(s) for s in info.siblings or () if "/" not in s.rfilename}
        folder = _Cache(hub_id, _hexadecimal(info.sha, 40))
        small = [file for name, file in files.items() if name.endswith(_SUFFIXES)]
        for file in small:
            folder.fetch(file, lambda name, done, total: None)
        weights = [_known(files, name, hub_id) for name in _weight_names(hub_id, files, folder)]
        folder.check_space(weights)
        total, before = sum(file.size for file in weights), 0
        for file in weights:
            folder.fetch(file, _part_of(on_progress, before, total))
            before += file.size
        if (missing := missing_part(folder.snapshot)) is not None:
            raise ModelNotFoundError(f"hub model {hub_id} has no {missing}")
        folder.make_current()
        return folder.snapshot


def _announced(sibling: Any) -> _File:
    """A file as the hub describes it."""
    if sibling.lfs:
        return _File(sibling.rfilename, int(sibling.lfs.size), _hexadecimal(sibling.lfs.sha256, 64), None)
    return _File(sibling.rfilename, int(sibling.size or 0), None, _hexadecimal(sibling.blob_id, 40))


def _hexadecimal(text: Any, length: int) -> str:
    """A hash, which becomes a name in the cache and must not be able to leave it."""
    if not isinstance(text, str) or not re.fullmatch(rf"[0-9a-f]{{{length}}}", text):
        raise HubError(f"the hub ({constants.ENDPOINT}) answers with what is no hash: {str(text)[:80]!r}")
    return text


def _part_of(on_progress: OnProgress, before: int, total: int) -> OnProgress:
    """Progress of one file, told as that of all: `before` bytes are those of the files before it."""

    def show(name: str, done: int, size: int) -> None:
        on_progress(name, before + min(done, size), total)

    return show


def drop_damaged(folder: Path) -> tuple[str, ...]:
    """Names of the files in a cached model whose content is not what the cache names them by; they are
    removed, so that `fetch` gets them anew. Needs no network.
    """
    damaged = []
    for link in sorted(folder.iterdir()):
        blob = link.resolve()
        digest = blob.name
        if blob.parent.name != "blobs" or not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", digest):
            continue
        is_large = len(digest) == 64
        file = _File(link.name, blob.stat().st_size, digest if is_large else None, digest)
        if not file.matches(blob):
            blob.unlink()
            link.unlink()
            damaged.append(link.name)
    return tuple(damaged)


def _weight_names(hub_id: str, files: dict[str, _File], cache: _Cache) -> tuple[str, ...]:
    if SINGLE in files:
        return (SINGLE,)
    if INDEX in files:
        return indexed_files(read_object(cache.snapshot / INDEX), f"the index of hub model {hub_id}")
    pickled = any(name.endswith((".bin", ".pt", ".pth")) for name in files)
    more = " (there are pickled ones, which can run code and are not loaded)" if pickled else ""
    raise ModelNotFoundError(f"hub model {hub_id} has no safetensors weights{more}")


def _known(files: dict[str, _File], name: str, hub_id: str) -> _File:
    if name not in files:
        raise ModelNotFoundError(f"hub model {hub_id} lacks {name}, which its index names")
    return files[name]


class _Cache:
    """One commit of one model in the shared cache."""

    def __init__(self, hub_id: str, commit: str) -> None:
        self._hub_id = hub_id
        self._commit = commit
        self._root = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=hub_id, repo_type="model")
        self.snapshot = self._root / "snapshots" / commit

    def fetch(self, file: _File, on_progress: OnProgress) -> None:
        """Have the file in the snapshot, checked; one that is there and damaged is fetched anew."""
        blob = self._root / "blobs" / file.digest
        blob.parent.mkdir(parents=True, exist_ok=True)
        with _locked(blob.with_name(f"{file.digest}.lock")):
            if blob.exists() and not file.matches(blob):
                blob.unlink()
            if not blob.exists():
                self._download(file, blob, on_progress)
        # Links it into the snapshot; the hub's library knows file systems that have no links.
        hf_hub_download(
            self._hub_id,
            file.name,
            revision=self._commit,
            cache_dir=constants.HF_HUB_CACHE,
            endpoint=constants.ENDPOINT,
            etag_timeout=ANSWER_SECONDS,
        )

    def check_space(self, files: list[_File]) -> None:
        """Raise HubError when the disk has no room for what is missing of `files`."""
        missing = 0
        for file in files:
            blob = self._root / "blobs" / file.digest
            part = blob.with_name(f"{file.digest}.part")
            missing += 0 if blob.exists() else file.size - (part.stat().st_size if part.exists() else 0)
        free = shutil.disk_usage(self._root).free
        if missing > max(0, free - _SPARE_BYTES):
            raise HubError(
                f"model {self._hub_id} needs {missing / 1e9:.1f} GB of disk and {free / 1e9:.1f} GB are free "
                f"in {constants.HF_HUB_CACHE}: free some, or set HF_HOME to a folder on another disk"
            )

    def make_current(self) -> None:
        """From now on the model is found without the network."""
        reference = self._root / "refs" / "main"
        reference.parent.mkdir(parents=True, exist_ok=True)
        draft = reference.with_name(f".main.{os.getpid()}")
        draft.write_text(self._commit)
        draft.replace(reference)

    def _download(self, file: _File, blob: Path, on_progress: OnProgress) -> None:
        part = blob.with_name(f"{file.digest}.part")
        if part.exists() and part.stat().st_size > file.size:
            part.unlink()
        try:
            with part.open("ab") as target:
                begun = part.stat().st_size
                http_get(
                    hf_hub_url(self._hub_id, file.name, revision=self._commit, endpoint=constants.ENDPOINT),
                    target,
                    resume_size=begun,
                    headers=build_hf_headers(),
                    expected_size=file.size,
                    tqdm_class=_meter(file, begun, on_progress),
                )
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                part.unlink(missing_ok=True)
            raise
        if not file.matches(part):
            part.unlink()
            raise HubError(
                f"{file.name} of hub model {self._hub_id} came damaged (its hash is not the hub's): try again"
            )
        part.replace(blob)


def _meter(file: _File, begun: int, on_progress: OnProgress) -> Any:
    """What the hub's library takes for a class of progress bars."""

    class Meter:
        def __init__(self, *_: Any, **__: Any) -> None:
            self._done = begun

        def update(self, count: int = 1) -> None:
            self._done += int(count)
            on_progress(file.name, self._done, file.size)

        def __enter__(self) -> Meter:
            return self

        def __exit__(self, *_: object) -> None:
            """Nothing was opened."""

    return Meter


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Alone among processes that fetch the same file."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _told(hub_id: str) -> Iterator[None]:
    """Every way in which the hub fails, as one of our errors."""
    elsewhere = (
        f"try again, or fetch it on another machine (`swarmd model fetch {hub_id}`) and copy the folder "
        "here, or set HF_ENDPOINT to a mirror"
    )
    if constants.is_offline_mode():
        raise HubError(
            f"model {hub_id} is not on this machine and HF_HUB_OFFLINE is set: unset it, {elsewhere}"
        )
    login = "accept its terms on the hub and log in with `hf auth login`, or set HF_TOKEN"
    try:
        yield
    except GatedRepoError:
        raise HubError(f"hub model {hub_id} is gated: {login}") from None
    except RepositoryNotFoundError:
        raise ModelNotFoundError(
            f"no model {hub_id} on the hub, or it is private: check the name, or log in with `hf auth login`"
        ) from None
    except HFValidationError as error:
        raise ModelNotFoundError(f"{hub_id!r} is no name of a hub model: {first_line(error)}") from None
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise HubError(f"the hub does not give hub model {hub_id} to this account: {login}") from None
        raise HubError(
            f"the hub ({constants.ENDPOINT}) fails for model {hub_id} (HTTP status {status}): {elsewhere}"
        ) from None
    except TRANSPORT_ERRORS as error:
        raise HubError(
            f"model {hub_id} is not whole on this machine and the hub ({constants.ENDPOINT}) cannot be "
            f"reached ({first_line(error)}): {elsewhere}"
        ) from None
    except OSError as error:
        if isinstance(error.errno, int):
            raise HubError(
                f"model {hub_id} cannot be written to {constants.HF_HUB_CACHE} ({error.strerror}): "
                "free some space or fix the permissions, or set HF_HOME to another folder"
            ) from None
        raise HubError(
            f"model {hub_id} came incomplete from the hub ({first_line(error)}): {elsewhere}"
        ) from None


def _newest_snapshot(hub_id: str) -> Path:
    root = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=hub_id, repo_type="model")
    return root / "snapshots" / (root / "refs" / "main").read_text().strip()
