"""Dialling join addresses, each on its own and for ever. A dead address costs its own dialler some
patience and nobody else anything; one that comes up is joined, also for the second and third time.

Before p2pd is asked to dial, the TCP port is tried: p2pd remembers failures and then refuses to
dial for up to minutes, and its errors do not tell a closed port from a wrong peer id.
"""

from __future__ import annotations

import asyncio
import errno
import random
import re
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from swarmd.errors import NetworkError
from swarmd.gossip.transport import BootstrapStatus, RequestError

_TCP = re.compile(r"/(ip4|ip6|dns|dns4|dns6)/([^/]+)/tcp/(\d+)(?:/(?!p2p-circuit)[^/]+)*?/p2p/[^/]+")
_PEER_ID = re.compile(r"/p2p/([1-9A-HJ-NP-Za-km-z]+)/?$")
_PROBE_TIMEOUT_SECONDS = 5.0
_CHECK_SECONDS = 0.5
_REFUSED_TO_TRY = "dial backoff"


def address_peer_id(address: str) -> str:
    """Peer id at the end of a join address. Raises ValueError when there is none."""
    match = _PEER_ID.search(address)
    if match is None:
        raise ValueError(f"a join address ends in /p2p/PEERID, got {address!r}")
    return match[1]


async def try_port(address: str, timeout_seconds: float = _PROBE_TIMEOUT_SECONDS) -> None:
    """Raises RequestError in plain words when the address' TCP port does not accept.

    Addresses that are not plain TCP (relayed, QUIC) are left to p2pd.
    """
    match = _TCP.fullmatch(address)
    if match is None:
        return
    network, host, port = match[1], match[2], int(match[3])
    family = {"4": socket.AF_INET, "6": socket.AF_INET6}.get(network[-1], socket.AF_UNSPEC)
    try:
        async with asyncio.timeout(timeout_seconds):
            _, writer = await asyncio.open_connection(host, port, family=family)
        writer.close()
    except TimeoutError as error:
        raise RequestError(f"no answer from {host} port {port} in {timeout_seconds:g} s") from error
    except socket.gaierror as error:
        raise RequestError(f"the name {host} does not resolve") from error
    except OSError as error:
        if error.errno == errno.ECONNREFUSED:
            raise RequestError(f"{host} refuses connections on port {port}: nothing listens there") from error
        raise RequestError(f"{host} port {port}: {error.strerror or error}") from error


@dataclass(frozen=True)
class Backoff:
    """Pauses between tries: from `min_seconds`, doubling, up to `max_seconds`, each shortened at random."""

    min_seconds: float
    max_seconds: float

    def pause(self, failures: int, rng: random.Random) -> float:
        """Seconds to wait after that many failures in a row (1 or more)."""
        full = min(self.max_seconds, self.min_seconds * 2.0 ** min(failures - 1, 30))
        return full * rng.uniform(0.5, 1.0)


class BootstrapDialer:
    """Keeps one join address connected.

    Args:
        address: multiaddr ending in /p2p/PEERID.
        connect: connects to a peer id at an address, or raises NetworkError.
        is_connected: whether a peer id is connected now.
        backoff: pauses between failed tries.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        address: str,
        connect: Callable[[str, str], Awaitable[None]],
        is_connected: Callable[[str], bool],
        backoff: Backoff,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.address = address
        self.peer_id = address_peer_id(address)
        self._connect = connect
        self._is_connected = is_connected
        self._backoff = backoff
        self._clock = clock
        self._rng = random.Random()
        self._status = BootstrapStatus(address, False, None, clock(), 0)

    @property
    def status(self) -> BootstrapStatus:
        """How the address is doing."""
        return self._status

    async def run(self) -> None:
        """Dial whenever it is not connected. Never returns."""
        while True:
            if self._is_connected(self.peer_id):
                self._set(True, None, 0)
                await asyncio.sleep(_CHECK_SECONDS)
                continue
            attempts = self._status.attempts + 1
            try:
                await self._connect(self.peer_id, self.address)
            except NetworkError as error:
                self._set(False, self._reason(error), attempts)
                await self._pause(attempts)
            else:
                self._set(True, None, 0)
                await asyncio.sleep(_CHECK_SECONDS)

    def _reason(self, error: NetworkError) -> str:
        """The reason to show: what was wrong before p2pd began to refuse trying."""
        before = self._status.last_error
        return before if before is not None and _REFUSED_TO_TRY in str(error) else str(error)

    def _set(self, reachable: bool, error: str | None, attempts: int) -> None:
        since = self._status.since if reachable == self._status.reachable else self._clock()
        self._status = BootstrapStatus(self.address, reachable, error, since, attempts)

    async def _pause(self, failures: int) -> None:
        """Wait, but not longer than until the peer has connected to us by itself."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._backoff.pause(failures, self._rng)
        while (left := until - loop.time()) > 0 and not self._is_connected(self.peer_id):  # noqa: ASYNC110
            await asyncio.sleep(min(_CHECK_SECONDS, left))


Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class JoinAddresses:
    """The dialers of all join addresses, which may be replaced while they run.

    Args:
        own_peer_id: never dialled.
        connect, is_connected, backoff: as of `BootstrapDialer`.
    """

    def __init__(
        self,
        own_peer_id: str,
        connect: Callable[[str, str], Awaitable[None]],
        is_connected: Callable[[str], bool],
        backoff: Backoff,
    ) -> None:
        self.has_itself = False
        """Whether one of them names this node."""
        self._own_peer_id = own_peer_id
        self._make = partial(BootstrapDialer, connect=connect, is_connected=is_connected, backoff=backoff)
        self._dialers: dict[str, BootstrapDialer] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._spawn: Spawn | None = None

    @property
    def statuses(self) -> tuple[BootstrapStatus, ...]:
        """How each is doing."""
        return tuple(dialer.status for dialer in self._dialers.values())

    def replace(self, addresses: Iterable[str]) -> None:
        """Dial these and no others from now on. Those that stay go on as they were."""
        wanted = {address: address_peer_id(address) for address in addresses}
        self.has_itself = self._own_peer_id in wanted.values()
        others = [address for address, peer_id in wanted.items() if peer_id != self._own_peer_id]
        for address in self._dialers.keys() - set(others):
            del self._dialers[address]
            if (task := self._tasks.pop(address, None)) is not None:
                task.cancel()
        for address in others:
            if address not in self._dialers:
                self._dialers[address] = self._make(address)
                self._begin(address)

    def dial(self, spawn: Spawn) -> None:
        """Dial all of them, in tasks that `spawn` makes and whose end it sees to."""
        self._spawn = spawn
        for address in self._dialers:
            self._begin(address)

    def rest(self) -> None:
        """The tasks have an end: begin none before `dial` is called again."""
        self._spawn = None
        self._tasks.clear()

    def _begin(self, address: str) -> None:
        if self._spawn is not None:
            self._tasks[address] = self._spawn(self._dialers[address].run())
