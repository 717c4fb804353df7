import contextlib
import os
import socket
import subprocess
import sys

import pytest

from swarmd.errors import NetworkError
from swarmd.gossip.listen import ListenPorts, address_port, is_loopback


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def listener(port: int):  # type: ignore[no-untyped-def]
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # As p2pd does; another p2pd could bind the same port without an error.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        yield


def test_a_free_port_is_taken_as_it_is() -> None:
    port = free_port()
    with ListenPorts.take([f"/ip4/127.0.0.1/tcp/{port}"]) as ports:
        assert ports.addresses == (f"/ip4/127.0.0.1/tcp/{port}",)
        assert ports.notes == ()


def test_a_taken_port_gives_the_next_free_one_and_says_so() -> None:
    port = free_port()
    with listener(port), ListenPorts.take([f"/ip4/0.0.0.0/tcp/{port}"]) as ports:
        found = address_port(ports.addresses[0])
        assert port < found < port + 100
        assert f"port {port} is taken" in ports.notes[0]
        assert str(found) in ports.notes[0]


def test_two_nodes_that_start_at_once_get_different_ports() -> None:
    address = f"/ip4/127.0.0.1/tcp/{free_port()}"
    # Neither listens yet, so only the lock can tell.
    with ListenPorts.take([address]) as first, ListenPorts.take([address]) as second:
        assert first.addresses != second.addresses
    with ListenPorts.take([address]) as third:
        assert third.addresses == (address,)


def test_a_killed_node_holds_no_port() -> None:
    address = f"/ip4/127.0.0.1/tcp/{free_port()}"
    code = (
        "import os, signal, sys\n"
        "from swarmd.gossip.listen import ListenPorts\n"
        f"ports = ListenPorts.take([{address!r}])\n"
        "print(*ports.addresses, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert killed.stdout.strip() == address
    with ListenPorts.take([address]) as ports:
        assert ports.addresses == (address,)


def test_port_zero_gives_any_free_port_without_a_note() -> None:
    with ListenPorts.take(["/ip4/127.0.0.1/tcp/0"]) as ports:
        assert address_port(ports.addresses[0]) > 0
        assert ports.notes == ()


def test_the_rest_of_an_address_is_kept() -> None:
    with ListenPorts.take(["/ip4/127.0.0.1/udp/0/quic-v1"]) as ports:
        assert ports.addresses[0].endswith("/quic-v1")


def test_ip4_and_ip6_may_share_a_port_number() -> None:
    port = free_port()
    with ListenPorts.take([f"/ip6/::1/tcp/{port}"]) as ports:
        assert ports.addresses == (f"/ip6/::1/tcp/{port}",)


@pytest.mark.parametrize(
    ("address", "complaint"),
    [("/ip4/203.0.113.7/tcp/31337", "cannot listen on /ip4/203.0.113.7"), ("/memory/x", "must look like")],
)
def test_an_address_that_is_not_ours_is_one_line(address: str, complaint: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(NetworkError, match=complaint) as caught:
        ListenPorts.take(["/ip4/127.0.0.1/tcp/0", address])
    assert "\n" not in str(caught.value)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("/ip4/127.0.0.1/tcp/1", True),
        ("/ip4/127.9.9.9/tcp/1/p2p/12D3", True),
        ("/ip6/::1/tcp/1", True),
        ("/dns4/localhost/tcp/1", True),
        ("/ip4/0.0.0.0/tcp/1", False),
        ("/ip4/192.168.0.4/tcp/1", False),
        ("/dns4/example.org/tcp/1", False),
        ("/p2p-circuit", False),
    ],
)
def test_loopback_addresses_are_told_apart(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected
