"""What a node keeps over its ends: gathered for the trainer's checkpoint, and taken up again from it."""

from __future__ import annotations

import asyncio
import logging
import time

from swarmd.errors import SwarmdError, WorkerError, WorkerRefusalError
from swarmd.loops.state import LoopState, SavedState
from swarmd.replay.buffer import ReplayBuffer
from swarmd.tasks.manifest import Manifest
from swarmd.tasks.source import TaskSource
from swarmd.training.client import TrainerClient
from swarmd.training.messages import SaveRequest, TrainerReady

log = logging.getLogger("swarmd.node")

CHECKPOINT_SECONDS = 120.0
"""How long the trainer may take for a checkpoint, beside the time that the disk is given."""
STOP_SECONDS = 8.0
"""The same when the node is asked to stop: a small model is saved within the contract's 15 seconds."""
SLOW_DISK_BYTES_PER_SECOND = 50_000_000.0
"""A disk that writes less is not waited for."""
STATE_BYTES_PER_PARAMETER = 12
"""Weights and Adam's two moments in float32: what a checkpoint takes, as long as none has been written."""
SAVE = "save"
SAVED_GROUP_BYTES = 16_000_000
"""Largest part of the replay buffer in a checkpoint, as the buffer counts: some megabytes when written."""


class SaveError(SwarmdError):
    """A checkpoint was not written; training is not affected."""


class Saver:
    """Writes the node's checkpoints, and resumes from one."""

    def __init__(
        self, trainer: TrainerClient, state: LoopState, buffer: ReplayBuffer, manifest: Manifest
    ) -> None:
        self.problem = ""
        """Why the last checkpoint was not written. Empty when it was."""
        self._trainer = trainer
        self._state = state
        self._buffer = buffer
        self._manifest = manifest
        self._is_resumed = False
        self._bytes = 0

    @property
    def disk_seconds(self) -> float:
        """What a slow disk takes for one checkpoint. It is waited for: half a checkpoint is none."""
        return self._bytes / SLOW_DISK_BYTES_PER_SECOND

    def resume(self, ready: TrainerReady, peer_id: str, seed: int) -> TaskSource:
        """Go on where the trainer's checkpoint stands, or begin. Returns the node's stream of tasks.

        Raises CheckpointError when the checkpoint is of a newer swarmd.
        """
        self._bytes = ready.parameters * STATE_BYTES_PER_PARAMETER
        saved = SavedState()
        if ready.node_state is not None:
            saved = SavedState.decode(ready.node_state)
            log.info("resumed from %s at round %d", ready.resumed_from, saved.round)
        if saved.swarm_id == self._manifest.swarm_id:
            self._buffer.restore(saved.groups, max(0.0, time.time() - saved.saved_at))
            self._state.own_since_round = saved.own_since_round
        self._state.round = saved.round
        self._state.task_position = saved.source_position
        self._state.own_reward_total = saved.own_reward_total
        self._state.eval_reward = saved.eval_reward
        self._is_resumed = True
        return TaskSource(self._manifest, peer_id, seed, saved.source_position)

    async def save_or_say(self, when: str, trainer_seconds: float = CHECKPOINT_SECONDS) -> None:
        """Write a checkpoint. A failure is told, and does not end the node."""
        try:
            await self.save(when, trainer_seconds)
        except SaveError as error:
            log.warning("%s", error)

    async def save(self, when: str, trainer_seconds: float = CHECKPOINT_SECONDS) -> str:
        """Have the trainer write a checkpoint; returns its path. Raises SaveError when it does not.

        `when` is for people: at the end, after round 20. The deadline is `trainer_seconds` and the time
        of a slow disk.
        """
        if not self._is_resumed:
            raise SaveError(f"no checkpoint {when}: the node is still starting, there is nothing new to save")
        deadline_seconds = trainer_seconds + self.disk_seconds
        try:
            async with asyncio.timeout(deadline_seconds):
                # Only between two steps are the trainer's weights and the node's books of the same round.
                await self._state.until(
                    SAVE, lambda: not self._state.is_stepping, lambda: "the step that is under way"
                )
                reply = await self._trainer.save(self._request(), deadline_seconds)
        except WorkerRefusalError as error:
            self.problem = f"no checkpoint {when}: {error}"
            raise SaveError(self.problem) from error
        except (WorkerError, TimeoutError) as error:
            why = str(error) or f"the trainer was not done with it within {deadline_seconds:.0f} s"
            self.problem = f"no checkpoint {when}: {why}; the older ones are kept"
            raise SaveError(self.problem) from error
        self.problem, self._bytes = "", reply.bytes
        log.info("checkpoint %s: %s", when, reply.path)
        return reply.path

    def _request(self) -> SaveRequest:
        saved = SavedState(
            round=self._state.round,
            source_position=self._state.task_position,
            own_reward_total=self._state.own_reward_total,
            swarm_id=self._manifest.swarm_id,
            saved_at=time.time(),
            groups=self._buffer.saved(SAVED_GROUP_BYTES),
            eval_reward=self._state.eval_reward,
            own_since_round=self._state.own_since_round,
        )
        return SaveRequest(
            node_state=saved.encode(), round=self._state.round, eval_reward=self._state.eval_reward
        )
