"""Requests and replies over libp2p streams. One stream carries one request and one reply.

Each direction is a byte that says whether it went well, a 4-byte big-endian length, and the bytes.
A length above the limit is refused before anything is read.
"""

from __future__ import annotations

import asyncio
import logging

from swarmd.errors import NetworkError
from swarmd.gossip.libp2p_bindings import StreamInfo
from swarmd.gossip.libp2p_daemon import P2PDaemon, one_line
from swarmd.gossip.transport import (
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    RequestError,
    RequestHandler,
)

log = logging.getLogger(__name__)

_OK = 0
_FAILED = 1
_HEADER_BYTES = 5
_SERVE_TIMEOUT_SECONDS = 60.0
_AT_ONCE = 8
_AT_ONCE_PER_PEER = 2


async def request(
    daemon: P2PDaemon, peer_id: str, protocol: str, data: bytes, timeout_seconds: float
) -> bytes:
    """The reply of a peer. Raises RequestError when none came in time or it refused."""
    if len(data) > MAX_REQUEST_BYTES:
        raise RequestError(f"a request may have {MAX_REQUEST_BYTES} bytes at most, got {len(data)}")
    try:
        async with asyncio.timeout(timeout_seconds), daemon.stream(peer_id, protocol) as (reader, writer):
            await _write(writer, _OK, data)
            status, reply = await _read(reader, MAX_REPLY_BYTES)
    except TimeoutError as error:
        raise RequestError(f"no reply in {timeout_seconds:g} s") from error
    if status != _OK:
        raise RequestError(f"the peer refused: {one_line(reply.decode(errors='replace'))}")
    return reply


async def serve(daemon: P2PDaemon, protocol: str, handler: RequestHandler) -> None:
    """Answer streams of a protocol for as long as p2pd lives."""
    busy: dict[str, int] = {}

    async def answer(info: StreamInfo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer_id = str(info.peer_id)
        try:
            if sum(busy.values()) >= _AT_ONCE or busy.get(peer_id, 0) >= _AT_ONCE_PER_PEER:
                await _write(writer, _FAILED, b"busy")
                return
            busy[peer_id] = busy.get(peer_id, 0) + 1
            try:
                async with asyncio.timeout(_SERVE_TIMEOUT_SECONDS):
                    _, data = await _read(reader, MAX_REQUEST_BYTES)
                    await _reply(writer, handler, peer_id, data)
            finally:
                busy[peer_id] -= 1
                if not busy[peer_id]:
                    del busy[peer_id]
        except (OSError, EOFError, TimeoutError, NetworkError) as error:
            log.debug("stream %s from %s: %s", protocol, peer_id, error)
        finally:
            writer.close()

    await daemon.add_binary_stream_handler(protocol, answer)


async def _reply(writer: asyncio.StreamWriter, handler: RequestHandler, peer_id: str, data: bytes) -> None:
    try:
        reply = await handler(peer_id, data)
    except (NetworkError, ValueError) as error:
        await _write(writer, _FAILED, one_line(str(error)).encode())
        return
    if len(reply) > MAX_REPLY_BYTES:
        await _write(writer, _FAILED, b"the reply is too large")
        return
    await _write(writer, _OK, reply)


async def _write(writer: asyncio.StreamWriter, status: int, data: bytes) -> None:
    writer.write(bytes([status]) + len(data).to_bytes(4, "big"))
    writer.write(data)
    await writer.drain()


async def _read(reader: asyncio.StreamReader, limit_bytes: int) -> tuple[int, bytes]:
    header = await reader.readexactly(_HEADER_BYTES)
    length = int.from_bytes(header[1:], "big")
    if length > limit_bytes:
        raise RequestError(f"at most {limit_bytes} bytes expected, {length} announced")
    return header[0], await reader.readexactly(length)
