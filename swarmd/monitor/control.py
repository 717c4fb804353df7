"""Asking a running node, for commands that must answer at once: plain HTTP on the node's Unix socket,
with nothing but the standard library. The node's side is `control_server`.

    status = fetch_status(home.control_socket)
"""

from __future__ import annotations

import http.client
import socket
from pathlib import Path
from typing import TypeVar

import msgspec

from swarmd.errors import SwarmdError
from swarmd.monitor.status import LastKnown, NodeStatus, PeerStatus, load_last_known
from swarmd.paths import Home

Answer = TypeVar("Answer")

TIMEOUT_SECONDS = 5.0
MAX_ANSWER_BYTES = 64_000_000


class ControlError(SwarmdError):
    """No node answers on the control socket, or not what was expected."""


class CheckpointReply(msgspec.Struct, frozen=True):
    """A checkpoint was written."""

    path: str


class StopReply(msgspec.Struct, frozen=True):
    """The node has been asked to stop, and is still saving."""

    pid: int


class PeerJudged(msgspec.Struct, frozen=True):
    """The operator's word on a peer is known and kept."""

    peer_id: str
    state: str


def fetch_status(control_socket: Path, timeout_seconds: float = TIMEOUT_SECONDS) -> NodeStatus:
    """What the running node says about itself. Raises ControlError."""
    return _ask(control_socket, "GET", "/status", NodeStatus, timeout_seconds)


def fetch_peers(control_socket: Path, timeout_seconds: float = TIMEOUT_SECONDS) -> tuple[PeerStatus, ...]:
    """What the running node knows about its peers. Raises ControlError."""
    return _ask(control_socket, "GET", "/peers", tuple[PeerStatus, ...], timeout_seconds)


def request_stop(control_socket: Path, timeout_seconds: float = TIMEOUT_SECONDS) -> StopReply:
    """Ask the running node to save a checkpoint and end. Returns before it has. Raises ControlError."""
    return _ask(control_socket, "POST", "/stop", StopReply, timeout_seconds)


def judge_peer(
    control_socket: Path, peer_id: str, word: str, timeout_seconds: float = TIMEOUT_SECONDS
) -> PeerJudged:
    """Tell the running node the operator's word on a peer: ban, allow or forget. Raises ControlError."""
    return _ask(control_socket, "POST", f"/peers/{peer_id}/{word}", PeerJudged, timeout_seconds)


def request_checkpoint(control_socket: Path, timeout_seconds: float) -> CheckpointReply:
    """Have the running node write a checkpoint, and wait for it. Raises ControlError, also when it cannot."""
    return _ask(control_socket, "POST", "/checkpoint", CheckpointReply, timeout_seconds)


def current_or_last_known(home: Home) -> LastKnown | None:
    """The running node's state, else its last known one as stopped; None for a home without either.

    Raises ControlError when a node runs there but does not answer.
    """
    if home.running_pid() is None:
        return load_last_known(home.status_file)
    try:
        return LastKnown(fetch_status(home.control_socket), fetch_peers(home.control_socket))
    except ControlError:
        if home.running_pid() is None:  # It ended in between.
            return load_last_known(home.status_file)
        raise


class _UnixConnection(http.client.HTTPConnection):
    """An HTTP connection whose other end is a Unix socket."""

    def __init__(self, path: Path, timeout_seconds: float) -> None:
        super().__init__("localhost", timeout=timeout_seconds)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket. Raises OSError."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _ask(
    control_socket: Path, verb: str, route: str, answer_type: type[Answer], timeout_seconds: float
) -> Answer:
    connection = _UnixConnection(control_socket, timeout_seconds)
    try:
        connection.request(verb, route)
        response = connection.getresponse()
        body = response.read(MAX_ANSWER_BYTES)
    except TimeoutError as error:
        raise ControlError(f"the node did not answer within {timeout_seconds:g} s") from error
    except (FileNotFoundError, ConnectionError) as error:
        raise ControlError(f"no node answers at {control_socket}: it is starting or not running") from error
    except (OSError, http.client.HTTPException) as error:
        raise ControlError(f"the node at {control_socket} cannot be asked: {_one_line(error)}") from error
    finally:
        connection.close()
    if response.status != 200:
        raise ControlError(f"the node refused {route}: {_one_line(body[:500].decode('utf-8', 'replace'))}")
    try:
        return msgspec.json.decode(body, type=answer_type)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ControlError(f"the node's answer to {route} is not understood: {_one_line(error)}") from error


def _one_line(said: object) -> str:
    return " ".join(str(said).split())
