"""What waits to be looked at: the messages of one topic, in a queue per peer.

Queues are served in turn, so a flood from one peer never delays another's message by more than one
of its own. Room is bounded in messages and in bytes; where it is short, the longest queue gives up
its oldest message. A `Door` decides before a message takes any room, from its source and size alone.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from typing import Protocol, Self

import msgspec

MAX_WAITING_BYTES = 32_000_000


class Received(msgspec.Struct, frozen=True):
    """One published message as it arrived."""

    source: str
    """Peer id of the node that published it, as its transport signature shows; not of the relayer."""
    data: bytes
    sequence: int | None = None
    """The publisher's count of its messages, under the same signature. None: the transport has none."""
    arrived_at: float | None = None
    """Monotonic seconds. None: the transport does not say."""
    asked_for: bool = False
    """Part of an answer to our own request: `source` gave it, and need not have written it."""


class Door(Protocol):
    """Decides what may wait, and is told what had to leave. Both count for the peer."""

    def admits(self, received: Received) -> bool:
        """Whether a message may take room. Called for every message: must be cheap."""

    def note_dropped(self, source: str) -> None:
        """A message of this peer was dropped from a full queue."""


class OpenDoor:
    """Admits everything, for swarms in which nobody is a stranger."""

    def admits(self, received: Received) -> bool:
        """Yes."""
        return True

    def note_dropped(self, source: str) -> None:
        """Nobody asks."""


class Subscription:
    """The messages of one topic, without our own.

    Several consumers may iterate, each message goes to one; of one source they come in the order of
    arrival. Iteration ends when the transport closes.

    Args:
        topic: its name.
        capacity: messages that wait at most.
        door: decides what may wait.
        capacity_bytes: bytes that wait at most.
        at_once: messages of one source that may be in the hands of consumers; see `release`. 0: any number.
    """

    def __init__(
        self,
        topic: str,
        capacity: int,
        door: Door | None = None,
        *,
        capacity_bytes: int = MAX_WAITING_BYTES,
        at_once: int = 0,
    ) -> None:
        if capacity < 1 or capacity_bytes < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity} messages, {capacity_bytes} bytes")
        self.topic = topic
        self.dropped = 0
        """Messages that had to leave a full queue."""
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._door = door or OpenDoor()
        self._at_once = at_once
        self._queues: OrderedDict[str, _Queue] = OrderedDict()
        self._waiting = 0
        self._waiting_bytes = 0
        self._out: Counter[str] = Counter()
        self._wake = asyncio.Event()
        self._closed = False

    def push(self, received: Received) -> None:
        """Called by the transport for each message, and by catch-up."""
        if self._closed or not (received.asked_for or self._door.admits(received)):
            return
        queue = self._queues.get(received.source)
        if queue is None:
            queue = self._queues[received.source] = _Queue()
        queue.messages.append(received)
        self._count(queue, 1, len(received.data))
        while self._waiting > self._capacity:
            self._drop_from(max(self._queues, key=lambda source: len(self._queues[source].messages)))
        while self._waiting_bytes > self._capacity_bytes:
            self._drop_from(max(self._queues, key=lambda source: self._queues[source].bytes))
        self._wake.set()

    def release(self, source: str) -> None:
        """A consumer is done with a message of this source. To be called when `at_once` limits them."""
        self._out[source] -= 1
        if self._out[source] <= 0:
            del self._out[source]
        self._wake.set()

    def has(self, source: str) -> bool:
        """Whether messages of this source wait or are in the hands of consumers."""
        return source in self._queues or self._out[source] > 0

    def close(self) -> None:
        """End the iteration after the messages that already wait."""
        self._closed = True
        self._wake.set()

    def __len__(self) -> int:
        return self._waiting

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Received:
        while (received := self._take()) is None:
            if self._closed and not self._waiting:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        return received

    def _take(self) -> Received | None:
        """The oldest message of the source whose turn it is."""
        for source, queue in self._queues.items():
            if self._at_once and self._out[source] >= self._at_once:
                continue
            received = self._pop(source, queue)
            if source in self._queues:
                self._queues.move_to_end(source)
            if self._at_once:
                self._out[source] += 1
            return received
        return None

    def _drop_from(self, source: str) -> None:
        self._pop(source, self._queues[source])
        self.dropped += 1
        self._door.note_dropped(source)

    def _pop(self, source: str, queue: _Queue) -> Received:
        received = queue.messages.popleft()
        self._count(queue, -1, -len(received.data))
        if not queue.messages:
            del self._queues[source]
        return received

    def _count(self, queue: _Queue, messages: int, size_bytes: int) -> None:
        queue.bytes += size_bytes
        self._waiting += messages
        self._waiting_bytes += size_bytes


class _Queue:
    """What waits of one source, oldest first."""

    __slots__ = ("bytes", "messages")

    def __init__(self) -> None:
        self.messages: deque[Received] = deque()
        self.bytes = 0
