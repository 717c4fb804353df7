"""Work beside a block: started with it, cancelled at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self


class Background:
    """Runs `work` beside the block of an `async with`.

    When the work fails, the block is cancelled and the failure raised (in an ExceptionGroup). When
    the block fails, its exception is raised as it is, unlike with a TaskGroup, so that a caller can
    name it in an `except`.
    """

    def __init__(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._work = work
        self._name = name
        self._group = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self._task = self._group.create_task(self._work, name=self._name)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._task.cancel()
        if isinstance(error, asyncio.CancelledError):
            # Ours to pass on, or the group's own when the work failed: it knows which.
            await self._group.__aexit__(kind, error, trace)
        else:
            await self._group.__aexit__(None, None, None)
