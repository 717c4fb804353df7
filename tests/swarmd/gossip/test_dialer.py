import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import pytest

from swarmd.gossip.dialer import Backoff, BootstrapDialer, address_peer_id, try_port
from swarmd.gossip.transport import RequestError

PEER = "12D3KooWPjceQrSwdWXPyLLeABRXmuqt69Rg3sBYbU1Nft9HyQ6X"
ADDRESS = f"/ip4/127.0.0.1/tcp/1/p2p/{PEER}"
QUICK = Backoff(min_seconds=0.01, max_seconds=0.02)


class Remote:
    """A peer that can be switched on and off."""

    def __init__(self) -> None:
        self.on = False
        self.connected = False
        self.dials = 0

    async def connect(self, peer_id: str, address: str) -> None:
        self.dials += 1
        if not self.on:
            raise RequestError("switched off")
        self.connected = True

    def is_connected(self, peer_id: str) -> bool:
        self.connected = self.connected and self.on
        return self.connected


@contextlib.asynccontextmanager
async def dialling(remote: Remote) -> AsyncIterator[BootstrapDialer]:
    clock = iter(range(1_000_000))
    dialer = BootstrapDialer(ADDRESS, remote.connect, remote.is_connected, QUICK, lambda: next(clock))
    running = asyncio.create_task(dialer.run())
    try:
        yield dialer
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def until(condition) -> None:  # type: ignore[no-untyped-def]
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0.01)


async def test_a_dead_address_is_dialled_again_and_joined_each_time_it_comes_up() -> None:
    remote = Remote()
    async with dialling(remote) as dialer:
        await until(lambda: dialer.status.attempts >= 5)
        assert dialer.status.last_error == "switched off"
        assert not dialer.status.reachable
        for _ in range(2):
            remote.on = True
            await until(lambda: dialer.status.reachable)
            assert remote.connected
            assert dialer.status.last_error is None
            remote.on = False
            await until(lambda: dialer.status.attempts >= 3)
            assert not dialer.status.reachable


async def test_a_connected_peer_is_not_dialled() -> None:
    remote = Remote()
    remote.on = remote.connected = True
    async with dialling(remote) as dialer:
        await until(lambda: dialer.status.reachable)
        await asyncio.sleep(0.1)
    assert remote.dials == 0


async def test_since_tells_when_reachability_changed_not_when_it_was_checked() -> None:
    remote = Remote()
    async with dialling(remote) as dialer:
        start = dialer.status.since
        await until(lambda: dialer.status.attempts >= 3)
        assert dialer.status.since == start
        remote.on = True
        await until(lambda: dialer.status.reachable)
        assert dialer.status.since > start


async def test_a_closed_port_is_named_in_plain_words() -> None:
    with pytest.raises(
        RequestError, match=r"127\.0\.0\.1 refuses connections on port 1: nothing listens there"
    ):
        await try_port(ADDRESS)


async def test_an_open_port_passes_and_addresses_that_are_not_tcp_are_left_to_p2pd() -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        await try_port(f"/ip4/127.0.0.1/tcp/{port}/p2p/{PEER}")
        await try_port(f"/dns4/localhost/tcp/{port}/p2p/{PEER}")
    await try_port(f"/ip4/127.0.0.1/udp/1/quic-v1/p2p/{PEER}")
    await try_port(f"/ip4/127.0.0.1/tcp/1/p2p/{PEER}/p2p-circuit/p2p/{PEER}")


async def test_a_name_that_does_not_exist_is_said_to_be_the_reason() -> None:
    with pytest.raises(RequestError, match=r"the name no-such-host\.invalid does not resolve"):
        await try_port(f"/dns4/no-such-host.invalid/tcp/1/p2p/{PEER}")


def test_pauses_double_up_to_the_longest_and_vary() -> None:
    backoff = Backoff(min_seconds=2, max_seconds=60)
    rng = random.Random(0)
    assert all(1 <= backoff.pause(1, rng) <= 2 for _ in range(100))
    assert all(4 <= backoff.pause(3, rng) <= 8 for _ in range(100))
    assert all(30 <= backoff.pause(10_000, rng) <= 60 for _ in range(100))
    assert len({backoff.pause(3, rng) for _ in range(10)}) == 10


def test_a_join_address_names_its_peer() -> None:
    assert address_peer_id(ADDRESS) == PEER
    assert address_peer_id(ADDRESS + "/") == PEER
    with pytest.raises(ValueError, match="ends in /p2p/PEERID"):
        address_peer_id("/ip4/127.0.0.1/tcp/1")


async def test_the_reason_shown_is_the_real_one_not_that_p2pd_refuses_to_try() -> None:
    errors = iter(["peer id mismatch"] + ["all dials failed: dial backoff"] * 1000)

    async def connect(peer_id: str, address: str) -> None:
        raise RequestError(next(errors))

    dialer = BootstrapDialer(ADDRESS, connect, lambda peer_id: False, QUICK)
    running = asyncio.create_task(dialer.run())
    await until(lambda: dialer.status.attempts >= 3)
    running.cancel()
    assert dialer.status.last_error == "peer id mismatch"
