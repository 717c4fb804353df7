"""What daemon and worker say to each other on their socket.

A frame is a 4-byte big-endian length and that many bytes of MessagePack. A length is checked
before anything is allocated for it. Requests and replies are typed by a `Method`; inside a frame
they travel as bytes that only the method's own types decode.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

Request = TypeVar("Request")
Reply = TypeVar("Reply")

MAX_FRAME_BYTES = 256 * 1024 * 1024
"""Longest frame either side accepts. Weights never travel this way, so this is never near."""

HEADER = struct.Struct(">I")


class FrameError(Exception):
    """The other side sent something that is not a frame. The socket cannot be used any further."""


@dataclass(frozen=True)
class Method(Generic[Request, Reply]):
    """One thing a worker can be asked, with the types of the request and of the reply."""

    name: str
    request_type: type[Request]
    reply_type: type[Reply]
    is_work: bool = False
    """What the worker is there for: one that has answered it was well, whatever it dies of later."""


class Call(msgspec.Struct, frozen=True, tag="call"):
    """Daemon to worker: do this. Answered by a `Result` or a `Refusal` of the same id."""

    id: int
    method: str
    request: bytes


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Daemon to worker: finish what you are at and exit."""


class Result(msgspec.Struct, frozen=True, tag="result"):
    """Worker to daemon: what the method returned."""

    id: int
    reply: bytes


class Refusal(msgspec.Struct, frozen=True, tag="refusal"):
    """Worker to daemon: the method raised a SwarmdError. The worker lives on."""

    id: int
    error: str
    """Name of the error's class in swarmd.errors."""
    message: str


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """Worker to daemon: what it is busy with, for people."""

    text: str


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """Worker to daemon: the process is alive and can run Python."""


ToWorker = Call | Stop
ToDaemon = Result | Refusal | Progress | Beat

# Deep nesting raises RecursionError, also in a field that the type does not have.
_UNDECODABLE = (msgspec.MsgspecError, RecursionError)

_to_worker = msgspec.msgpack.Decoder(ToWorker)
_to_daemon = msgspec.msgpack.Decoder(ToDaemon)


def pack(message: ToWorker | ToDaemon) -> bytes:
    """The whole frame of a message, header included. Raises FrameError when it is too long."""
    body = msgspec.msgpack.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"a message of {len(body)} bytes does not fit a frame of {MAX_FRAME_BYTES}")
    return HEADER.pack(len(body)) + body


def body_length(header: bytes) -> int:
    """Bytes that follow a header. Raises FrameError when that is more than a frame may hold."""
    (length,) = HEADER.unpack(header)
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"a frame claims {length} bytes, at most {MAX_FRAME_BYTES} are allowed")
    return int(length)


def unpack_to_worker(body: bytes) -> ToWorker:
    """Decodes what the daemon sent. Raises FrameError."""
    try:
        return _to_worker.decode(body)
    except _UNDECODABLE as error:
        raise FrameError(f"not a message to a worker: {_in_one_line(error)}") from error


def unpack_to_daemon(body: bytes) -> ToDaemon:
    """Decodes what a worker sent. Raises FrameError."""
    try:
        return _to_daemon.decode(body)
    except _UNDECODABLE as error:
        raise FrameError(f"not a message to the daemon: {_in_one_line(error)}") from error


def _in_one_line(error: Exception) -> str:
    """What is wrong. It may quote the bytes that it is wrong with, line breaks included."""
    return " ".join(str(error).split())
