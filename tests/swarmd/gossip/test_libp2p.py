"""One transport, or two, on real p2pd. Several nodes together: tests/swarm/test_gossip.py."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from swarmd.errors import NetworkError
from swarmd.gossip.dialer import Backoff
from swarmd.gossip.libp2p import Libp2pSettings, Libp2pTransport
from swarmd.gossip.listen import address_port
from swarmd.gossip.subscription import Subscription
from swarmd.gossip.transport import (
    EQUAL_STANDING,
    MAX_MESSAGE_BYTES,
    MAX_RECORD_BYTES,
    KnownPeer,
    MessageTooLargeError,
    RequestError,
    TransportDownError,
)
from swarmd.identity import Identity

LOOPBACK = "/ip4/127.0.0.1/tcp/0"


@pytest.fixture
def folder() -> Iterator[Path]:
    # Unix socket paths are short; pytest's own folders are not.
    path = Path(tempfile.mkdtemp(prefix="sw-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


def transport(
    folder: Path,
    name: str,
    join: tuple[str, ...] = (),
    listen: str = LOOPBACK,
    check: Callable[[str, bytes], bool] = lambda subkey, value: True,
    **more: float,
) -> Libp2pTransport:
    home = folder / name
    home.mkdir(exist_ok=True)
    identity = Identity.load_or_create(home / "key")
    settings = Libp2pSettings(
        identity_path=home / "key",
        peer_id=identity.peer_id,
        runtime_folder=home,
        listen=(listen,),
        join=join,
        redial=Backoff(min_seconds=0.2, max_seconds=1.0),
        **more,  # type: ignore[arg-type]
    )
    return Libp2pTransport(settings, check)


@pytest.fixture
async def pair(folder: Path) -> AsyncIterator[tuple[Libp2pTransport, Libp2pTransport]]:
    async with transport(folder, "a") as a:
        async with transport(folder, "b", join=a.state.addresses) as b:
            await until(lambda: a.peer_id in b.state.connected and b.peer_id in a.state.connected)
            yield a, b


async def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0.05)


async def until_heard(sender: Libp2pTransport, inbox: Subscription, data: bytes, seconds: float = 20) -> None:
    """Publish again and again until it arrives: a mesh takes a moment to form."""
    async with asyncio.timeout(seconds):
        while True:
            await sender.publish(inbox.topic, data)
            await asyncio.sleep(0.1)
            while len(inbox):
                received = await anext(inbox)
                if received.data == data:
                    assert received.source == sender.peer_id
                    return


async def until_found(reader: Libp2pTransport, key: str, expected: dict[str, bytes]) -> None:
    async with asyncio.timeout(20):
        while await reader.get_records(key) != expected:  # noqa: ASYNC110  # records have no event
            await asyncio.sleep(0.2)


async def test_messages_travel_both_ways_and_name_their_author(
    pair: tuple[Libp2pTransport, Libp2pTransport],
) -> None:
    a, b = pair
    inbox_a, inbox_b = a.subscribe(Subscription("topic", 100)), b.subscribe(Subscription("topic", 100))
    await until_heard(a, inbox_b, b"from a")
    await until_heard(b, inbox_a, b"from b")


async def test_the_largest_message_arrives_and_a_larger_one_is_refused(
    pair: tuple[Libp2pTransport, Libp2pTransport],
) -> None:
    a, b = pair
    inbox = b.subscribe(Subscription("topic", 100))
    await until_heard(a, inbox, b"mesh")
    largest = os.urandom(MAX_MESSAGE_BYTES)
    await a.publish("topic", largest)
    async with asyncio.timeout(20):
        while (await anext(inbox)).data != largest:
            pass
    with pytest.raises(MessageTooLargeError):
        await a.publish("topic", largest + b"!")


async def test_a_killed_p2pd_comes_back_as_the_same_peer_with_all_it_did(
    pair: tuple[Libp2pTransport, Libp2pTransport],
) -> None:
    a, b = pair
    inbox = b.subscribe(Subscription("topic", 100))
    await until_heard(a, inbox, b"before")

    async def echo(peer_id: str, data: bytes) -> bytes:
        return data

    b.serve("/echo", echo)
    await asyncio.sleep(0.2)
    assert await a.request(b.peer_id, "/echo", b"before", 10) == b"before"
    killed = b.p2pd_pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    await until(lambda: b.p2pd_pid not in (None, killed), seconds=10)
    await until_heard(a, inbox, b"after", seconds=10)
    await until(lambda: b.peer_id in a.state.connected)
    assert b.state.restarts == 1
    assert await a.request(b.peer_id, "/echo", b"after", 10) == b"after"
    assert await b.put_record("key", b"after", 60)


async def publish_for_ever(sender: Libp2pTransport) -> None:
    async with asyncio.timeout(5):
        while True:
            await sender.publish("topic", b"")


async def test_publishing_while_p2pd_is_down_says_so(folder: Path) -> None:
    async with transport(folder, "a") as a:
        pid = a.p2pd_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(TransportDownError):
            await publish_for_ever(a)
        await until(lambda: a.state.up)


async def test_a_p2pd_that_does_not_come_up_any_more_is_given_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def live() -> None:
        async with transport(folder, "a", max_failed_starts=3, failed_starts_seconds=0.1) as a:
            monkeypatch.setattr("swarmd.gossip.libp2p_daemon.p2pd_path", lambda: "/bin/false")
            assert a.p2pd_pid is not None
            os.kill(a.p2pd_pid, signal.SIGKILL)
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(live(), 60)
    (error,) = caught.value.exceptions
    assert isinstance(error, NetworkError)
    assert re.match(r"p2pd has not come up for \d+ s and 3 starts: p2pd did not start: ", str(error))


async def test_a_p2pd_that_hangs_is_replaced(folder: Path) -> None:
    async with transport(folder, "a") as a:
        pid = a.p2pd_pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: a.state.restarts == 1 and a.state.up, seconds=40)
        assert not psutil.pid_exists(pid)


async def test_p2pd_dies_with_a_killed_daemon(folder: Path) -> None:
    code = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from swarmd.gossip.libp2p import Libp2pSettings, Libp2pTransport\n"
        "from swarmd.identity import Identity\n"
        "async def main():\n"
        "    home = Path(sys.argv[1])\n"
        "    identity = Identity.create(home / 'key')\n"
        "    settings = Libp2pSettings(home / 'key', identity.peer_id, home, ('/ip4/127.0.0.1/tcp/0',))\n"
        "    async with Libp2pTransport(settings, lambda subkey, value: True) as transport:\n"
        "        print(transport.p2pd_pid, flush=True)\n"
        "        await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    daemon = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, folder, stdout=asyncio.subprocess.PIPE
    )
    assert daemon.stdout is not None
    p2pd = psutil.Process(int(await daemon.stdout.readline()))
    assert p2pd.name() == "p2pd"
    daemon.kill()
    await daemon.wait()
    await until(lambda: not p2pd.is_running() or p2pd.status() == psutil.STATUS_ZOMBIE, seconds=2)


async def test_an_error_in_the_block_comes_out_as_it_is(folder: Path) -> None:
    with pytest.raises(KeyError):
        async with transport(folder, "a"):
            raise KeyError("of the caller")


async def test_closing_ends_p2pd_and_its_sockets_and_subscriptions(folder: Path) -> None:
    async with transport(folder, "a") as a:
        inbox = a.subscribe(Subscription("topic", 10))
        pid = a.p2pd_pid
        assert pid is not None
    assert [received async for received in inbox] == []
    assert not psutil.pid_exists(pid)
    assert [path.name for path in (folder / "a").iterdir()] == ["key"]
    with pytest.raises(TransportDownError):
        await a.publish("topic", b"")


async def test_a_taken_port_moves_to_the_next_free_one_and_is_said(folder: Path) -> None:
    async with transport(folder, "a") as a:
        taken = a.state.addresses[0].removesuffix(f"/p2p/{a.peer_id}")
        async with transport(folder, "b", listen=taken) as b:
            ports = [address_port(address) for address in b.state.addresses]
            assert address_port(taken) not in ports
            assert any(f"port {address_port(taken)} is taken" in note for note in b.state.notes)
            # The address it announces is the one it can be reached at.
            async with transport(folder, "c", join=b.state.addresses) as c:
                await until(lambda: b.peer_id in c.state.connected)


async def test_a_node_that_announces_only_loopback_says_so(folder: Path) -> None:
    async with transport(folder, "a") as a:
        assert any("only loopback" in note for note in a.state.notes)


async def test_a_failed_start_names_the_phase_and_what_p2pd_said(folder: Path) -> None:
    a = transport(folder, "a")
    (folder / "a" / "key").write_bytes(b"no key")
    with pytest.raises(NetworkError, match=r"starting p2pd failed .*its last line: .*\w") as caught:
        await a.__aenter__()
    assert "\n" not in str(caught.value)
    assert not list((folder / "a").glob("*.sock"))


async def test_a_start_that_takes_too_long_names_the_phase_and_leaves_nothing(folder: Path) -> None:
    before = set(psutil.Process().children(recursive=True))
    a = transport(folder, "a", startup_timeout_seconds=0.01)
    with pytest.raises(NetworkError, match=r"starting p2pd took more than 0\.01 s; its last line"):
        await a.__aenter__()
    assert set(psutil.Process().children(recursive=True)) == before


async def test_a_key_of_another_peer_is_refused(folder: Path) -> None:
    a = transport(folder, "a")
    (folder / "a" / "key").unlink()
    other = Identity.create(folder / "a" / "key")
    with pytest.raises(NetworkError, match=f"came up as {other.peer_id}"):
        await a.__aenter__()


async def test_records_are_found_by_others_under_their_owners_and_expire(
    pair: tuple[Libp2pTransport, Libp2pTransport],
) -> None:
    a, b = pair
    assert await a.put_record("key", b"of a", 30)
    assert await b.put_record("key", b"of b", 30)
    assert await a.put_record("short", b"of a", 1)
    both = {a.peer_id: b"of a", b.peer_id: b"of b"}
    await until_found(b, "key", both)
    await until_found(a, "key", both)
    await asyncio.sleep(1.2)
    assert await b.get_records("short") == {}
    assert await b.get_records("nothing") == {}


async def test_a_peer_holds_a_record_whose_owner_is_gone(folder: Path) -> None:
    async with transport(folder, "a") as a:
        async with transport(folder, "b", join=a.state.addresses) as b:
            assert await b.put_record("met", b"of b", 30)
            await until_found(a, "met", {b.peer_id: b"of b"})
            # They stand in each other's tables: this one is handed over by itself.
            assert await b.put_record("key", b"of b", 30)
        assert await a.get_records("key") == {b.peer_id: b"of b"}


async def test_a_renewed_record_replaces_the_old_one(pair: tuple[Libp2pTransport, Libp2pTransport]) -> None:
    a, b = pair
    await a.put_record("key", b"old", 30)
    await a.put_record("key", b"new", 31)
    await until_found(b, "key", {a.peer_id: b"new"})


async def test_a_record_that_fails_the_check_is_not_held_for_others(folder: Path) -> None:
    async with transport(folder, "a", check=lambda subkey, value: value == b"good") as a:
        async with transport(folder, "b", join=a.state.addresses) as b:
            await until(lambda: a.peer_id in b.state.connected)
            async with asyncio.timeout(20):
                while True:
                    await b.put_record("key", b"good", 30)
                    await b.put_record("other", b"bad", 30)
                    if await a.get_records("key"):
                        break
                    await asyncio.sleep(0.2)
            assert await a.get_records("key") == {b.peer_id: b"good"}
            assert await a.get_records("other") == {}


async def test_a_record_above_the_limit_is_refused(folder: Path) -> None:
    async with transport(folder, "a") as a:
        with pytest.raises(MessageTooLargeError):
            await a.put_record("key", bytes(MAX_RECORD_BYTES + 1), 30)


async def test_requests_carry_megabytes_and_failures_are_one_line(
    pair: tuple[Libp2pTransport, Libp2pTransport],
) -> None:
    a, b = pair

    async def repeat(peer_id: str, data: bytes) -> bytes:
        assert peer_id == a.peer_id
        return data * 1_000

    async def refuse(peer_id: str, data: bytes) -> bytes:
        raise NetworkError("not today")

    b.serve("/repeat", repeat)
    b.serve("/refuse", refuse)
    await asyncio.sleep(0.2)
    data = os.urandom(4_000)
    assert await a.request(b.peer_id, "/repeat", data, 20) == data * 1_000
    for peer_id, protocol in (
        (b.peer_id, "/refuse"),
        (b.peer_id, "/unknown"),
        (Identity.generate().peer_id, "/x"),
    ):
        with pytest.raises(RequestError) as caught:
            await a.request(peer_id, protocol, b"", 5)
        assert "\n" not in str(caught.value)


async def announce_huge_request(sender: Libp2pTransport, peer_id: str) -> None:
    assert sender._life is not None
    async with asyncio.timeout(10), sender._life.daemon.stream(peer_id, "/note") as (reader, writer):
        writer.write(b"\xff" * 8 + b"x" * 100)
        await writer.drain()
        await reader.readexactly(1)


async def test_a_peer_that_announces_a_huge_request_is_cut_off(
    pair: tuple[Libp2pTransport, Libp2pTransport],
) -> None:
    a, b = pair
    asked: list[bytes] = []

    async def note(peer_id: str, data: bytes) -> bytes:
        asked.append(data)
        return b"ok"

    b.serve("/note", note)
    await asyncio.sleep(0.2)
    with pytest.raises(RequestError, match="closed before the reply"):
        await announce_huge_request(a, b.peer_id)
    assert asked == []
    assert await a.request(b.peer_id, "/note", b"fine", 10) == b"ok"


async def test_addresses_that_are_none_are_survived(folder: Path) -> None:
    stranger = Identity.generate().peer_id
    async with transport(folder, "a") as a:
        a.add_known_peers(
            [
                KnownPeer(
                    stranger,
                    (
                        "",
                        "/ip4/1.2.3.4/tcp/99999",
                        "/dns4/" + "x" * 300 + "/tcp/1",
                        "/unix/etc/passwd",
                        f"/ip4/127.0.0.1/tcp/1/p2p/{a.peer_id}",
                        "/ip4/127.0.0.1/tcp/1",
                    ),
                ),
                KnownPeer("not a peer id", ("/ip4/127.0.0.1/tcp/1",)),
            ]
        )
        await asyncio.sleep(2.5)
        assert a.state.up
        assert a.state.restarts == 0


async def test_a_known_peer_is_dialled_without_a_join_address(folder: Path) -> None:
    async with transport(folder, "a") as a, transport(folder, "b") as b:
        b.add_known_peers([KnownPeer(a.peer_id, a.state.addresses)])
        await until(lambda: b.peer_id in a.state.connected)


async def test_a_wrong_peer_id_at_a_live_address_is_named(folder: Path) -> None:
    async with transport(folder, "a") as a:
        wrong = re.sub(a.peer_id, Identity.generate().peer_id, a.state.addresses[0])
        async with transport(folder, "b", join=(wrong,)) as b:
            await until(lambda: b.state.bootstrap[0].attempts > 1)
            error = b.state.bootstrap[0].last_error
            assert error is not None
            assert "peer id mismatch" in error
            assert "\n" not in error


async def test_an_own_join_address_is_not_dialled_but_said(folder: Path) -> None:
    home = folder / "a"
    home.mkdir()
    identity = Identity.create(home / "key")
    async with transport(folder, "a", join=(f"/ip4/127.0.0.1/tcp/1/p2p/{identity.peer_id}",)) as a:
        assert a.state.bootstrap == ()
        assert any("names this node itself" in note for note in a.state.notes)


def test_the_network_parts_of_hivemind_come_without_torch() -> None:
    code = "import sys, swarmd.gossip.libp2p; print('torch' in sys.modules, 'numpy' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["False", "False"]
    assert shown.stderr == ""


async def test_a_port_of_another_program_is_not_shared(folder: Path) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        async with transport(folder, "a", listen=f"/ip4/127.0.0.1/tcp/{port}") as a:
            assert address_port(a.state.addresses[0]) != port


async def test_join_addresses_may_change_while_it_runs(folder: Path) -> None:
    async with transport(folder, "a") as a, transport(folder, "b") as b:
        (address,) = a.state.addresses
        gone = f"/ip4/127.0.0.1/tcp/1/p2p/{Identity.generate().peer_id}"
        b.join([gone])
        await until(lambda: [status.last_error is None for status in b.state.bootstrap] == [False])
        b.join([address, *b.state.addresses])
        assert [status.address for status in b.state.bootstrap] == [address]
        assert any("itself" in note for note in b.state.notes)
        await until(lambda: b.state.bootstrap[0].reachable)
        # What was asked for last holds for the next p2pd, too.
        assert b.p2pd_pid is not None
        os.kill(b.p2pd_pid, signal.SIGKILL)
        await until(lambda: not b.state.up)
        await until(lambda: b.state.up and b.state.bootstrap[0].reachable)


async def test_a_peer_in_good_standing_is_dialled_though_all_connections_are_with_strangers(
    folder: Path,
) -> None:
    async with transport(folder, "good") as good, contextlib.AsyncExitStack() as stack:
        home = folder / "own"
        home.mkdir()
        identity = Identity.create(home / "key")
        settings = Libp2pSettings(home / "key", identity.peer_id, home, (LOOPBACK,), enough_peers=2)
        standing = msgspec.structs.replace(EQUAL_STANDING, is_known=lambda peer_id: peer_id == good.peer_id)
        own = Libp2pTransport(settings, lambda subkey, value: True, standing)
        await stack.enter_async_context(own)
        for name in ("s1", "s2", "s3"):
            await stack.enter_async_context(transport(folder, name, join=own.state.addresses))
        await until(lambda: len(own.state.connected) == 3)
        own.add_known_peers([KnownPeer(good.peer_id, good.state.addresses)])
        await until(lambda: good.peer_id in own.state.connected)


async def test_a_relayed_connection_of_strangers_is_given_little_memory(folder: Path) -> None:
    async with transport(folder, "a") as a:
        assert "-relayBufferSize=65536" in psutil.Process(a.p2pd_pid).cmdline()
