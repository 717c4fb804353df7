"""Where a node keeps things. One folder, its home, holds all state of one node; a lock in it
promises that no two running nodes share one. Sockets live in a runtime folder whose path is
short enough for Unix sockets.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from swarmd.errors import ConfigError, HomeError, HomeInUseError

__all__ = ["Home", "default_home", "locate_home", "lock_identity"]

# sun_path holds 104 bytes on macOS and 108 on Linux, and the longest socket name is about 30.
_LONGEST_RUNTIME_BYTES = 70
_LOCK_PATIENCE_SECONDS = 0.5
_PROBE_BYTES = 1_000_000


@dataclass(frozen=True)
class Home:
    """The layout of one node's home. Making a Home touches nothing on disk; `prepare` does."""

    folder: Path

    @property
    def identity_key(self) -> Path:
        """The Ed25519 key of the node, in libp2p's file format."""
        return self.folder / "identity.key"

    @property
    def config_file(self) -> Path:
        """The node's own configuration, read first of all sources. Need not exist."""
        return self.folder / "config.toml"

    @property
    def lock_file(self) -> Path:
        """Locked while a node runs; holds its process id."""
        return self.folder / "lock"

    @property
    def state(self) -> Path:
        """Small files that outlive a run: the last status, known peers."""
        return self.folder / "state"

    @property
    def status_file(self) -> Path:
        """The last known status, as JSON."""
        return self.state / "status.json"

    @property
    def peers_file(self) -> Path:
        """Peers that were connected in earlier runs, as JSON."""
        return self.state / "peers.json"

    @property
    def reputation_file(self) -> Path:
        """What was made of peers in earlier runs, and whom the operator banned or allowed, as JSON."""
        return self.state / "reputation.json"

    @property
    def checkpoints(self) -> Path:
        """One folder per checkpoint."""
        return self.folder / "checkpoints"

    @property
    def weights(self) -> Path:
        """Files of the weight channel, where it has some. Of no use once the node has ended."""
        return self.folder / "weights"

    @property
    def logs(self) -> Path:
        """The node's log and those of its workers."""
        return self.folder / "logs"

    @property
    def log_file(self) -> Path:
        """The node's own log."""
        return self.logs / "node.log"

    @property
    def history(self) -> Path:
        """SQLite file with one row per round."""
        return self.folder / "history.sqlite"

    @property
    def reward_plot(self) -> Path:
        """PNG of the reward over rounds."""
        return self.folder / "reward.png"

    @property
    def runtime(self) -> Path:
        """Folder for sockets: `run` in the home, or a short one under /tmp where that is too long.

        It exists while a node holds the lock.
        """
        inside = self.folder / "run"
        if len(os.fsencode(inside)) <= _LONGEST_RUNTIME_BYTES:
            return inside
        digest = hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:16]
        return Path("/tmp") / f"swarmd-{os.getuid()}-{digest}"

    @property
    def control_socket(self) -> Path:
        """Unix socket on which a running node answers `status`, `peers` and `stop`."""
        return self.runtime / "control.sock"

    def prepare(self) -> None:
        """Make the folders and show that the home can be written. Overwrites nothing.

        Raises HomeError in one line when the disk is full, read-only or forbidden.
        """
        try:
            for folder in (self.folder, self.state, self.checkpoints, self.logs):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._probe_space()
        except OSError as error:
            raise HomeError(
                f"home {self.folder} cannot be written ({error.strerror or error}): free some space, "
                f"fix its permissions, or choose another --home"
            ) from error

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold this home, with an empty runtime folder, until the block ends. Call `prepare` first.

        Raises HomeInUseError when another process holds it. The lock ends with the process,
        however it ends, so a stale one cannot exist.
        """
        with _held_lock(self.lock_file, self.in_use_message):
            self._prepare_runtime()
            try:
                yield
            finally:
                self.clear_runtime()
                with contextlib.suppress(OSError):  # Something else is in it: left for the next run.
                    self.runtime.rmdir()

    def in_use_message(self, pid: int) -> str:
        """What to tell who wants this home while process `pid` has it."""
        return (
            f"home {self.folder} is in use by the node with process id {pid}: stop it with "
            f"`swarmd stop --home {self.folder}`, or choose another --home"
        )

    def running_pid(self) -> int | None:
        """Process id of the node that holds this home, or None when none runs."""
        try:
            descriptor = os.open(self.lock_file, os.O_RDONLY)
        except OSError:
            return None
        try:
            # A shared lock: it fails only while a node holds the exclusive one.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _pid_in(descriptor)
        finally:
            os.close(descriptor)
        return None

    def _probe_space(self) -> None:
        probe = self.state / f".probe-{os.getpid()}"
        try:
            with probe.open("wb") as file:
                file.write(b"\0" * _PROBE_BYTES)
                file.flush()
                os.fsync(file.fileno())
        finally:
            probe.unlink(missing_ok=True)

    def _prepare_runtime(self) -> None:
        runtime = self.runtime
        try:
            runtime.mkdir(mode=0o700, exist_ok=True)
            found = runtime.lstat()
        except OSError as error:
            raise HomeError(
                f"runtime folder {runtime} cannot be made ({error.strerror or error}): remove what is there"
            ) from error
        # Under /tmp anybody could have made it first.
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise HomeError(
                f"runtime folder {runtime} must be a folder that only this user can write: remove it"
            )

        self.clear_runtime()

    def clear_runtime(self) -> None:
        """Remove sockets: one that a killed run left must not be taken for a live one."""
        for leftover in self.runtime.iterdir():
            if stat.S_ISSOCK(leftover.lstat().st_mode):
                leftover.unlink(missing_ok=True)


@contextlib.contextmanager
def lock_identity(peer_id: str) -> Iterator[None]:
    """Hold an identity on this machine, so that a copied key does not run twice under one user.

    Raises HomeInUseError naming the peer id and the process that has it.
    """
    if not re.fullmatch(r"[0-9A-Za-z]+", peer_id):
        raise ValueError(f"not a peer id: {peer_id!r}")
    folder = Path("/tmp") / f"swarmd-{os.getuid()}-identities"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise HomeError(f"lock folder {folder} cannot be made ({error.strerror or error})") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise HomeError(f"lock folder {folder} must be a folder of this user: remove it")
    with _held_lock(
        folder / peer_id,
        lambda pid: (
            f"identity {peer_id} is in use by the node with process id {pid}: two nodes may not share a key; "
            f"give this home its own by removing its copy of identity.key"
        ),
        is_kept=False,
    ):
        yield


def locate_home(option: Path | None, environment: Mapping[str, str]) -> Home:
    """The home a command works on: the --home option, else SWARMD_HOME, else the default."""
    if option is not None:
        return Home(option.expanduser().absolute())
    named = environment.get("SWARMD_HOME", "")
    if named:
        return Home(Path(named).expanduser().absolute())
    return Home(default_home(environment))


def default_home(environment: Mapping[str, str], platform: str = sys.platform) -> Path:
    """The platform's folder for application data. Raises ConfigError where there is none."""
    data = environment.get("XDG_DATA_HOME", "")
    if platform != "darwin" and os.path.isabs(data):
        return Path(data) / "swarmd"
    try:
        user = Path(environment["HOME"]) if environment.get("HOME") else Path.home()
    except RuntimeError as error:
        raise ConfigError("no home folder of this user is known: give --home or set SWARMD_HOME") from error
    if platform == "darwin":
        return user / "Library" / "Application Support" / "swarmd"
    return user / ".local" / "share" / "swarmd"


@contextlib.contextmanager
def _held_lock(path: Path, in_use: Callable[[int], str], *, is_kept: bool = True) -> Iterator[None]:
    """An exclusive lock on a file that holds our process id; `in_use` words the refusal. A file that is
    not kept is removed at the end.
    """
    descriptor = _locked(path, in_use)
    try:
        with contextlib.suppress(OSError):  # On a full disk: the lock holds without our number in it.
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        if not is_kept:
            with contextlib.suppress(OSError):
                path.unlink()
        os.close(descriptor)


def _locked(path: Path, in_use: Callable[[int], str]) -> int:
    """A descriptor of the file, exclusively locked. Raises HomeError, HomeInUseError."""
    # Patience: `running_pid` of another command holds a shared lock for an instant.
    deadline = time.monotonic() + _LOCK_PATIENCE_SECONDS
    while True:
        try:
            # Not inherited by children: the lock must end with this process, not with an orphan.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise HomeError(f"lock file {path} cannot be opened ({error.strerror or error})") from error
        is_ours = _try_exclusive(descriptor)
        # Its holder may have removed it between our two steps: then it locks nothing.
        if is_ours and _is_at(path, descriptor):
            return descriptor
        pid = _pid_in(descriptor)
        os.close(descriptor)
        if not is_ours and time.monotonic() > deadline:
            raise HomeInUseError(in_use(pid))
        time.sleep(0.02)


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether an open file is still the one with this name."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _try_exclusive(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _pid_in(descriptor: int) -> int:
    """The process id written in a lock file; 0 when its holder has not written it yet."""
    text = os.pread(descriptor, 32, 0).strip()
    return int(text) if text.isdigit() else 0
