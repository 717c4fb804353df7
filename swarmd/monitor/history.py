"""What each round brought, kept in a SQLite file: one row a round, the oldest dropped when there are
too many. Reading works while a node writes.

A disk that is full or a file that breaks costs rows, which are counted, and never a round.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

import msgspec

log = logging.getLogger("swarmd.history")

FORMAT = 1
"""Written into the file as SQLite's user_version. A file of another format is set aside; one that
only lacks columns gets them."""

_BUSY_SECONDS = 2.0


class RoundRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One round. None where a figure does not exist."""

    round: int
    ended_at: float
    """Wall clock, seconds since the Unix epoch."""
    policy_version: int
    own_reward: float | None = None
    """Mean over own groups sampled during the round, none left out."""
    external_reward: float | None = None
    eval_reward: float | None = None
    """Of the last evaluation, repeated until the next."""
    local_groups: int = 0
    """Own groups trained on, those that stood in for external ones included."""
    external_groups: int = 0
    filled_groups: int = 0
    groups_with_signal: int = 0
    peers: int = 0
    buffer_local: int = 0
    buffer_external: int = 0
    tokens: int = 0
    """Completion tokens trained on."""
    loss: float | None = None
    grad_norm: float | None = None
    entropy: float | None = None
    mean_ratio: float | None = None
    clipped_share: float | None = None
    kl: float | None = None
    """To the start weights, nats a token."""
    sampler_kl: float | None = None
    """From the policies that sampled own groups to the trainer's, nats a token."""
    sampler_gap: float | None = None
    """Mean absolute difference between generator and trainer, nats a token, on own groups of lag 0."""
    effective_share: float | None = None
    """Effective sample size of own tokens over their number."""
    dropped_share: float | None = None
    """Part of peers' tokens that was taken out."""
    lag_groups: tuple[int, ...] = ()
    """Own groups by policy lag; in the file a JSON array."""
    learning_rate: float | None = None
    updates: int = 0
    skipped_updates: int = 0
    step_seconds: float = 0.0
    wait_seconds: float = 0.0
    trainer_idle_share: float | None = None
    """Part of the round in which nothing was asked of the trainer: it waited for work."""
    generator_idle_share: float | None = None
    loop_lag_max_ms: float = 0.0
    resident_bytes: int = 0


_COLUMNS = RoundRecord.__struct_fields__
_CREATE = f"CREATE TABLE IF NOT EXISTS rounds (round INTEGER PRIMARY KEY, {', '.join(_COLUMNS[1:])})"
_INSERT = f"INSERT OR REPLACE INTO rounds ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' for _ in _COLUMNS)})"


class History:
    """Writes the history of one node. Use as `async with`."""

    def __init__(self, path: Path, *, max_rounds: int) -> None:
        self.path = path
        self.lost_rounds = 0
        """Rounds that could not be written since the start."""
        self.problem = ""
        """Why not, for a person. Empty while writing works."""
        self.max_rounds = max_rounds
        """Kept at most, from the next round on; may be changed at any time."""
        self._database: sqlite3.Connection | None = None
        # A write whose waiter was cancelled goes on in its thread.
        self._writing = threading.Lock()

    async def __aenter__(self) -> History:
        """Open the file. One that cannot be used is set aside under another name, never overwritten."""
        await asyncio.to_thread(self._open_or_set_aside)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        await asyncio.to_thread(self._close)

    async def append(self, record: RoundRecord) -> None:
        """Write one round, off the event loop. A round that is there already (a node resumed from an
        older checkpoint) is replaced, and with it all that came after. Never raises for the disk's sake.
        """
        try:
            await asyncio.to_thread(self._write, record)
        except sqlite3.Error as error:
            self.lost_rounds += 1
            self.problem = f"history cannot be written ({error}): free some space at {self.path}"
        else:
            self.problem = ""

    def _write(self, record: RoundRecord) -> None:
        with self._writing:
            if self._database is None:
                self._database = _open(self.path)
            with self._database as database:
                database.execute("DELETE FROM rounds WHERE round > ?", (record.round,))
                database.execute(_INSERT, _row(record))
                database.execute("DELETE FROM rounds WHERE round <= ?", (record.round - self.max_rounds,))

    def _close(self) -> None:
        with self._writing:
            if self._database is not None:
                self._database.close()
                self._database = None

    def _open_or_set_aside(self) -> None:
        try:
            self._database = _open(self.path)
        except (sqlite3.DatabaseError, _OtherFormatError) as error:
            if isinstance(error, sqlite3.OperationalError):  # The disk, not the content: try again later.
                self.problem = f"history cannot be opened ({error}): check {self.path}"
                return
            aside = self.path.with_name(f"{self.path.name}.{time.time_ns()}.unreadable")
            for suffix in ("", "-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    Path(f"{self.path}{suffix}").rename(f"{aside}{suffix}")
            log.warning("%s cannot be read (%s): set aside as %s", self.path.name, error, aside)
            self._database = _open(self.path)


def read_rounds(path: Path, *, last: int = 1_000_000) -> tuple[RoundRecord, ...]:
    """The newest `last` rounds, oldest first; none when there is no file. Raises sqlite3.Error."""
    if not path.exists():
        return ()
    with contextlib.closing(
        sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY_SECONDS)
    ) as database:
        # Written by an older swarmd, it has fewer columns.
        columns = [name for name in _COLUMNS if name in _columns_of(database)]
        rows = database.execute(
            f"SELECT {', '.join(columns)} FROM rounds ORDER BY round DESC LIMIT ?", (last,)
        ).fetchall()
    return tuple(_record(dict(zip(columns, row, strict=True))) for row in reversed(rows))


def mean_own_reward(records: Iterable[RoundRecord]) -> float | None:
    """Mean of the own rewards that are known; None when there are none."""
    rewards = [record.own_reward for record in records if record.own_reward is not None]
    return sum(rewards) / len(rewards) if rewards else None


class _OtherFormatError(Exception):
    """The file was written by another version of swarmd."""


def _open(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=_BUSY_SECONDS, check_same_thread=False)
    try:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version not in (0, FORMAT):
            raise _OtherFormatError(f"format {version}, expected {FORMAT}")
        database.execute("PRAGMA journal_mode = WAL")
        # A power cut may cost the last rows, never the file.
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute(_CREATE)
        for name in _COLUMNS:
            if name not in _columns_of(database):
                database.execute(f"ALTER TABLE rounds ADD COLUMN {name}")
        database.execute(f"PRAGMA user_version = {FORMAT}")
        database.execute("SELECT * FROM rounds LIMIT 1").fetchall()
    except BaseException:
        database.close()
        raise
    return database


def _columns_of(database: sqlite3.Connection) -> set[str]:
    return {name for _, name, *_ in database.execute("PRAGMA table_info(rounds)")}


def _row(record: RoundRecord) -> tuple[object, ...]:
    values = msgspec.structs.astuple(record)
    return tuple(msgspec.json.encode(value) if isinstance(value, tuple) else value for value in values)


def _record(row: dict[str, object]) -> RoundRecord:
    """A round from its columns. A field that came after it was written is missing, or NULL, there."""
    known = {
        name: msgspec.json.decode(value) if isinstance(value, bytes) else value
        for name, value in row.items()
        if value is not None
    }
    return msgspec.convert(known, RoundRecord)
