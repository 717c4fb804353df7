"""Which tasks a node works on: an endless stream of references of its own, and the held-out set
that all nodes of a swarm share.

Promises: the same (manifest, peer id, seed) gives the same stream, before and after a restart; streams
of different nodes do not overlap; a reference of the stream never lies in the held-out range.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from itertools import accumulate

from swarmd.errors import ConfigError
from swarmd.tasks.manifest import MAX_SEED, Manifest
from swarmd.types import TaskReference

_STREAM_ROOM = 2**40
"""Longest stream that stays clear of the held-out range."""


class TaskSource:
    """A node's task stream. Position p is the task with index p; save `position` and continue there."""

    def __init__(self, manifest: Manifest, peer_id: str, seed: int, position: int = 0) -> None:
        if not 0 <= position < _STREAM_ROOM:
            raise ValueError(f"position must be 0 to 2^40, got {position}")
        self._tasks = manifest.tasks
        self._thresholds = list(accumulate(task.weight for task in manifest.tasks))
        self._seed = _node_seed(peer_id, seed, manifest.held_out)
        self._choice_key = f"{peer_id}/{seed}".encode()
        self._position = position

    @property
    def position(self) -> int:
        """How many tasks have been drawn since the stream began."""
        return self._position

    def draw(self, n: int) -> tuple[TaskReference, ...]:
        """The next n references."""
        first = self._position
        self._position += n
        return tuple(self._reference(position) for position in range(first, first + n))

    def _reference(self, position: int) -> TaskReference:
        # The choice hangs on the position alone, so that a restart continues the same stream.
        point = _hash_below(2**53, b"dataset", self._choice_key, position) / 2**53 * self._thresholds[-1]
        task = self._tasks[min(bisect_right(self._thresholds, point), len(self._tasks) - 1)]
        return TaskReference(task.dataset, task.digest, seed=self._seed, index=position)


def held_out_tasks(manifest: Manifest, n: int) -> tuple[TaskReference, ...]:
    """The first n tasks of the held-out set: the same on all nodes, datasets in turn.

    Raises ConfigError when the held-out range holds fewer than n.
    """
    start, stop = manifest.held_out
    if n > stop - start:
        raise ConfigError(f"eval_tasks is {n}, but the manifest holds out only {stop - start} seeds")
    tasks = manifest.tasks
    return tuple(
        TaskReference(task.dataset, task.digest, seed=start, index=i)
        for i, task in ((i, tasks[i % len(tasks)]) for i in range(n))
    )


def is_held_out(reference: TaskReference, manifest: Manifest) -> bool:
    """Whether the reference names a task of the held-out set: reasoning-gym draws from seed + index."""
    start, stop = manifest.held_out
    return start <= reference.seed + reference.index < stop


def _node_seed(peer_id: str, seed: int, held_out: tuple[int, int]) -> int:
    # Random(seed + index): nearby seeds overlap, so nodes are spread over 2^62.
    start, stop = held_out
    attempt = 0
    while True:
        candidate = _hash_below(MAX_SEED, b"node", f"{peer_id}/{seed}".encode(), attempt)
        if not start - _STREAM_ROOM <= candidate < stop:
            return candidate
        attempt += 1


def _hash_below(bound: int, purpose: bytes, key: bytes, number: int) -> int:
    digest = hashlib.sha256(b"swarmd " + purpose + b"\n" + key + b"\n" + str(number).encode()).digest()
    return int.from_bytes(digest[:8], "big") % bound
