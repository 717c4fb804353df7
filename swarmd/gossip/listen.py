"""Listen ports. Finds a free port for each listen address before p2pd starts, and holds it.

p2pd binds with SO_REUSEPORT, so two of them would share a port and steal each other's connections
without any error. So the port is tried here first without sharing, and a lock file holds it
against other nodes of this user that start at the same moment.
"""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import os
import re
import socket
import stat
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from swarmd.errors import NetworkError

PORTS_TRIED = 100
_ADDRESS = re.compile(r"/(ip4|ip6|dns|dns4|dns6)/([^/]+)/(tcp|udp)/(\d+)(/.*)?")


class ListenPorts:
    """Held ports for a node's listen addresses.

    Attributes:
        addresses: the multiaddrs to give to p2pd, with ports that are ours.
        notes: one line for each address whose port was taken.
    """

    def __init__(self) -> None:
        self.addresses: tuple[str, ...] = ()
        self.notes: tuple[str, ...] = ()
        self._locks: list[int] = []

    @classmethod
    def take(cls, addresses: Sequence[str]) -> Self:
        """Take a port for each address: the one asked for, else the next free one.

        Raises NetworkError naming the address that cannot be listened on.
        """
        ports = cls()
        taken, notes = [], []
        try:
            for address in addresses:
                found = ports._take_one(address)
                taken.append(found)
                if found != address and address_port(address) != 0:
                    notes.append(
                        f"port {address_port(address)} is taken: listening on {address_port(found)} ({found})"
                    )
        except NetworkError:
            ports.close()
            raise
        ports.addresses, ports.notes = tuple(taken), tuple(notes)
        return ports

    def close(self) -> None:
        """Give the ports back."""
        for lock in self._locks:
            os.close(lock)
        self._locks.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take_one(self, address: str) -> str:
        match = _ADDRESS.fullmatch(address)
        if match is None:
            raise NetworkError(f"listen address {address!r} must look like /ip4/0.0.0.0/tcp/31337")
        network, host, layer, first, rest = match.groups()
        kind = socket.SOCK_STREAM if layer == "tcp" else socket.SOCK_DGRAM
        asked = int(first)
        candidates = range(asked, min(asked + PORTS_TRIED, 65536)) if asked else (0,)
        for candidate in candidates:
            port = self._hold(address, network, host, kind, candidate)
            if port is not None:
                return f"/{network}/{host}/{layer}/{port}{rest or ''}"
        raise NetworkError(f"ports {asked} to {candidates[-1]} are all taken: give another one with --listen")

    def _hold(self, address: str, network: str, host: str, kind: socket.SocketKind, port: int) -> int | None:
        """The port now held, or None when it is taken."""
        lock = _lock_port(kind, port) if port else None
        if port and lock is None:
            return None
        free = None
        try:
            free = _free_port(address, network, host, kind, port)
        finally:
            if free is None and lock is not None:
                os.close(lock)
        if free is not None and lock is None:
            lock = _lock_port(kind, free)
        if free is None or lock is None:
            return None
        self._locks.append(lock)
        return free


def _free_port(address: str, network: str, host: str, kind: socket.SocketKind, port: int) -> int | None:
    """`port` (any free one for 0) when it can be bound without sharing, else None."""
    try:
        family, _, _, _, where = socket.getaddrinfo(
            host, port, socket.AF_INET6 if network.endswith("6") else socket.AF_INET, kind
        )[0]
        with socket.socket(family, kind) as probe:
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if kind == socket.SOCK_STREAM:
                # A port whose last connections are still closing is free.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
            bound: int = probe.getsockname()[1]
            return bound
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            return None
        raise NetworkError(
            f"cannot listen on {address} ({error.strerror or error}): "
            "name an address of this machine by --listen"
        ) from error


def _lock_port(kind: socket.SocketKind, port: int) -> int | None:
    """Descriptor of the lock held on a port, or None when another node of this user has it."""
    folder = Path("/tmp") / f"swarmd-{os.getuid()}-ports"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise NetworkError(f"lock folder {folder} must be a folder of this user: remove it")
        name = folder / f"{'tcp' if kind == socket.SOCK_STREAM else 'udp'}-{port}"
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise NetworkError(f"lock folder {folder} cannot be used: {error.strerror or error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def address_port(address: str) -> int:
    """Port of a multiaddr with a tcp or udp part. Raises ValueError for others."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise ValueError(f"no port in {address!r}")
    return int(match[4])


def is_loopback(address: str) -> bool:
    """Whether a multiaddr names this machine only."""
    match = _ADDRESS.fullmatch(address)
    if match is None or not match[1].startswith("ip"):
        return match is not None and match[2] == "localhost"
    try:
        return ipaddress.ip_address(match[2]).is_loopback
    except ValueError:
        return False
