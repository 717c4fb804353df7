"""What the loops of a node share: which policy is where, what the last rounds brought, and a signal
that something changed. Only the loops write here; status and the screen read.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from swarmd.errors import CheckpointError, WorkerRefusalError
from swarmd.loops.canary import Canary
from swarmd.replay.buffer import SavedGroup
from swarmd.types import RolloutGroup, WeightHandle

log = logging.getLogger(__name__)

FAILURE_PAUSE_SECONDS = 0.25
"""Rest of a loop after a failed call: a worker that has stopped for good refuses at once, again and again."""
RECHECK_SECONDS = 1.0
"""A wait looks again this often without being woken, since groups also grow stale by themselves."""

SAVED_STATE_FORMAT = 1


@dataclass
class Means:
    """A running mean."""

    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        """Take one value in."""
        self.total += value
        self.count += 1

    @property
    def mean(self) -> float | None:
        """The mean, None before the first value."""
        return self.total / self.count if self.count else None


class SavedState(msgspec.Struct, frozen=True):
    """What the daemon keeps in a checkpoint, beside what the trainer keeps."""

    round: int = 0
    source_position: int = 0
    own_reward_total: float = 0.0
    format: int = SAVED_STATE_FORMAT
    swarm_id: str = ""
    saved_at: float = 0.0
    """Wall clock, seconds since the Unix epoch."""
    groups: tuple[SavedGroup, ...] = ()
    """Of the replay buffer; learned from again only in the same swarm."""
    eval_reward: float | None = None
    """Of the last evaluation."""
    own_since_round: Means = msgspec.field(default_factory=Means)
    """Of the own groups that the round under way has had; those not trained on are among `groups`."""

    def encode(self) -> bytes:
        """As it stands in a checkpoint."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> SavedState:
        """Read what `encode` made, in this version or an older one. Raises CheckpointError."""
        try:
            written_as = msgspec.msgpack.decode(data, type=_Format).format
            if written_as > SAVED_STATE_FORMAT:
                raise CheckpointError(
                    f"the newest checkpoint is of a newer swarmd (node state in format {written_as}, "
                    f"known are formats up to {SAVED_STATE_FORMAT}): go on with the newer one"
                )
            return msgspec.msgpack.decode(data, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise CheckpointError(
                f"the node's state in the newest checkpoint is not understood: {error}"
            ) from error


class _Format(msgspec.Struct, frozen=True):
    format: int = 1


@dataclass(frozen=True)
class Clock:
    """The time that a node goes by."""

    monotonic: Callable[[], float] = time.monotonic
    """Seconds; ages are counted in it."""
    wall: Callable[[], float] = time.time
    """Seconds since the Unix epoch; peers are told it."""


@dataclass
class LoopState:
    """Shared by the loops of one node, on one event loop."""

    round: int = 0
    policy_version: int = 0
    """Newest version the trainer published."""
    served_version: int | None = None
    """Version the generator samples with; None until it has been given the trainer's weights."""
    weight_handle: WeightHandle | None = None
    canary: Canary = field(default_factory=Canary)
    clock: Clock = field(default_factory=Clock)
    is_stepping: bool = False
    """Whether the trainer is at a step now, which may end in a new version."""
    task_position: int = 0
    """Position in the node's task stream up to which all tasks are through: where a checkpoint goes on."""
    in_flight: list[int] = field(default_factory=list)
    """For each own group that is being sampled or scored, oldest first, the version it began with."""
    own_since_round: Means = field(default_factory=Means)
    """Rewards of own groups, unfiltered, sampled since the last round ended."""
    external_since_round: Means = field(default_factory=Means)
    """Rewards of peers' groups received since the last round ended, those without signal included."""
    own_reward_total: float = 0.0
    local_mean: float | None = None
    external_mean: float | None = None
    eval_reward: float | None = None
    evaluations: int = 0
    """Since the start."""
    missing: int | None = None
    """Own groups that the trainer's next batch lacked when it last looked; None before that."""
    external_wanted: int | None = None
    """Peers' groups wanted in a batch (J) now; None before the first round."""
    filled: int = 0
    """Own groups that stood in for external ones, since the start."""
    external_used: int = 0
    """External groups trained on, since the start."""
    generated_tokens: int = 0
    trained_groups: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    """Own groups that nobody can learn from, by reason."""
    unpublished: dict[str, int] = field(default_factory=dict)
    """Own groups that were not published, by reason."""
    waiting: dict[str, str] = field(default_factory=dict)
    """For each loop that waits, what it waits for."""
    problems: dict[str, str] = field(default_factory=dict)
    """For each loop, the failure it last met and has not got past."""

    def __post_init__(self) -> None:
        self._changed = asyncio.Event()

    @property
    def next_version(self) -> int:
        """The version that the trainer's next step begins with, at most."""
        return self.policy_version + self.is_stepping

    def notify(self) -> None:
        """Wake every loop that waits, so that it looks again."""
        self._changed.set()
        self._changed.clear()

    async def until(self, loop: str, condition: Callable[[], bool], waits_for: Callable[[], str]) -> None:
        """Return once `condition()` holds. Meanwhile `waiting[loop]` says what is waited for."""
        while not condition():
            self.waiting[loop] = waits_for()
            try:
                async with asyncio.timeout(RECHECK_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                continue
        self.waiting.pop(loop, None)

    async def note_failure(self, loop: str, error: Exception) -> None:
        """Show that a loop's work failed, and rest a moment before it is tried again."""
        # What ended a worker is in the log already, by who watches it.
        if isinstance(error, WorkerRefusalError) and loop not in self.problems:
            log.warning("%s", error)
        self.problems[loop] = str(error)
        await asyncio.sleep(FAILURE_PAUSE_SECONDS)

    def note_own(self, group: RolloutGroup) -> None:
        """Book an own group's reward: all of them count, also those that are never trained on."""
        self.own_since_round.add(group.mean_reward)

    def close_round(self) -> None:
        """End the round: its means become the ones that are shown, and counting starts anew."""
        self.round += 1
        if self.own_since_round.mean is not None:
            self.local_mean = self.own_since_round.mean
            self.own_reward_total += self.own_since_round.mean
        self.external_mean = self.external_since_round.mean
        self.own_since_round = Means()
        self.external_since_round = Means()
