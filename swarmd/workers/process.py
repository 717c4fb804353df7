"""The worker's side: a process that answers typed calls, one after the other, and dies with its
parent, however that dies.

An entrypoint looks like this:

    serve(worker_argument_fd(), [handle(INITIALISE, engine.initialise), handle(SAMPLE, engine.sample)])

A handler that raises a SwarmdError refuses the call and the worker lives on. Any other exception
is a bug or a broken state: it ends the process with a traceback in the worker's log, and the
daemon starts a new one.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic

import msgspec

from swarmd.errors import SwarmdError
from swarmd.workers.framing import (
    HEADER,
    Beat,
    Call,
    FrameError,
    Method,
    Progress,
    Refusal,
    Reply,
    Request,
    Result,
    ToDaemon,
    ToWorker,
    body_length,
    pack,
    unpack_to_worker,
)

BEAT_SECONDS = 0.5
"""Pause between two signs of life. Also how often the parent is looked for."""

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Handler(Generic[Request, Reply]):
    """A method and the function that answers it."""

    method: Method[Request, Reply]
    function: Callable[[Request], Reply]


def handle(method: Method[Request, Reply], function: Callable[[Request], Reply]) -> Handler[Request, Reply]:
    """Says which function answers a method."""
    return Handler(method, function)


def serve(fd: int, handlers: Sequence[Handler[Any, Any]]) -> None:
    """Answers calls on the socket `fd` until the daemon says stop or closes it.

    Raises FrameError when the daemon sends nonsense, and whatever unexpected a handler raises.
    """
    channel = _open_channel(fd)
    by_name = {handler.method.name: handler for handler in handlers}
    while True:
        message = channel.receive()
        if not isinstance(message, Call):
            return
        channel.send(_answer(message, by_name))


def report_progress(text: str) -> None:
    """Tells the daemon what this worker is busy with, such as "loading model". Cheap, never fails.

    Outside a worker it does nothing.
    """
    if _channel is not None:
        _channel.send(Progress(text))


def worker_argument_fd() -> int:
    """The socket's file descriptor, from the command line `--fd N [--parent PID]`.

    Binds this process to its parent's life first, and starts the signs of life.
    """
    parser = argparse.ArgumentParser(description="A worker process; the swarmd daemon starts it.")
    parser.add_argument("--fd", type=int, required=True, help="inherited socket to the daemon")
    parser.add_argument("--parent", type=int, default=os.getppid(), help="process id of the daemon")
    arguments = parser.parse_args()
    die_with_parent(arguments.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the daemon, which stops us in order.
    _open_channel(arguments.fd, arguments.parent)
    return int(arguments.fd)


def die_with_parent(parent_pid: int) -> None:
    """Has the kernel kill this process when its parent is gone (Linux; elsewhere the beat looks).

    Call it again in a forked child: the setting is not inherited. Exits at once when the parent
    is gone already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


def _answer(call: Call, by_name: dict[str, Handler[Any, Any]]) -> Result | Refusal:
    handler = by_name.get(call.method)
    if handler is None:
        return Refusal(call.id, "SwarmdError", f"unknown method {call.method!r}")
    request = msgspec.msgpack.decode(call.request, type=handler.method.request_type)
    try:
        reply = handler.function(request)
    except SwarmdError as error:
        traceback.print_exc()
        return Refusal(call.id, type(error).__name__, " ".join(str(error).split()))
    return Result(call.id, msgspec.msgpack.encode(reply))


class _Channel:
    """The worker's end of the socket. Sending is safe from any thread, receiving is for one."""

    def __init__(self, fd: int, parent_pid: int) -> None:
        self.fd = fd
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(True)
        self._sending = threading.Lock()
        self._parent_pid = parent_pid
        threading.Thread(target=self._beat, name="beat", daemon=True).start()

    def send(self, message: ToDaemon) -> None:
        """Sends a frame. A daemon that is gone is not an error here: receive() finds out."""
        frame = pack(message)
        with self._sending:
            try:
                self._socket.sendall(frame)
            except OSError:
                return

    def receive(self) -> ToWorker | None:
        """The next message; None when the daemon has closed the socket. Raises FrameError."""
        header = self._receive_exactly(HEADER.size)
        if header is None:
            return None
        body = self._receive_exactly(body_length(header))
        return None if body is None else unpack_to_worker(body)

    def _receive_exactly(self, count: int) -> bytes | None:
        chunks: list[bytes] = []
        missing = count
        while missing:
            try:
                chunk = self._socket.recv(min(missing, 1 << 20))
            except ConnectionError:
                return None
            if not chunk:
                return None
            chunks.append(chunk)
            missing -= len(chunk)
        return b"".join(chunks)

    def _beat(self) -> None:
        owner = os.getpid()
        while os.getpid() == owner:
            if os.getppid() != self._parent_pid:
                # Reached where the kernel does not do it. Ends what this worker forked, too.
                if os.getpgrp() == owner:
                    os.killpg(owner, signal.SIGKILL)
                os._exit(1)
            self.send(Beat())
            time.sleep(BEAT_SECONDS)


_channel: _Channel | None = None


def _open_channel(fd: int, parent_pid: int | None = None) -> _Channel:
    """The one channel of this process; opened on first use."""
    global _channel
    if _channel is None:
        _channel = _Channel(fd, os.getppid() if parent_pid is None else parent_pid)
    if _channel.fd != fd:
        raise FrameError(f"this process already serves fd {_channel.fd}, not {fd}")
    return _channel
