"""What belongs to one p2pd process, and ends with it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from swarmd.gossip.libp2p_daemon import P2PDaemon
from swarmd.gossip.libp2p_records import Records


class Life:
    """The tasks and records of one p2pd process."""

    records: Records

    def __init__(self, daemon: P2PDaemon, group: asyncio.TaskGroup) -> None:
        self.daemon = daemon
        self.meet_after: dict[str, float] = {}
        self._group = group
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something until it is done or p2pd is dead."""
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def end(self) -> None:
        """Cancel all of it."""
        for task in list(self._tasks):
            task.cancel()
