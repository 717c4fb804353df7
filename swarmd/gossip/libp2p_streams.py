"""Requests and replies over libp2p streams. One stream carries one request and one reply.

Each is sent as its length (8 bytes, big-endian) followed by the bytes; see protocol/spec/catch-up.md.
A length above the limit ends the exchange before anything is read. A request that is not answered
ends with the stream closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from swarmd.errors import NetworkError
from swarmd.gossip.libp2p_bindings import StreamInfo
from swarmd.gossip.libp2p_daemon import P2PDaemon
from swarmd.gossip.transport import (
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    RequestError,
    RequestHandler,
)

log = logging.getLogger(__name__)

_LENGTH_BYTES = 8
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
            await _write(writer, data)
            return await _read(reader, MAX_REPLY_BYTES)
    except TimeoutError as error:
        raise RequestError(f"no reply in {timeout_seconds:g} s") from error


async def serve(
    daemon: P2PDaemon, protocol: str, handler: RequestHandler, is_closed: Callable[[str], bool]
) -> None:
    """Answer streams of a protocol for as long as p2pd lives, except to peers for whom `is_closed`."""
    busy: dict[str, int] = {}

    async def answer(info: StreamInfo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer_id = str(info.peer_id)
        try:
            if (
                is_closed(peer_id)
                or sum(busy.values()) >= _AT_ONCE
                or busy.get(peer_id, 0) >= _AT_ONCE_PER_PEER
            ):
                return
            busy[peer_id] = busy.get(peer_id, 0) + 1
            try:
                async with asyncio.timeout(_SERVE_TIMEOUT_SECONDS):
                    reply = await handler(peer_id, await _read(reader, MAX_REQUEST_BYTES))
                    if len(reply) > MAX_REPLY_BYTES:
                        raise RequestError(f"a reply may have {MAX_REPLY_BYTES} bytes at most")
                    await _write(writer, reply)
            finally:
                busy[peer_id] -= 1
                if not busy[peer_id]:
                    del busy[peer_id]
        except (OSError, EOFError, TimeoutError, NetworkError) as error:
            log.debug("stream %s from %s: %s", protocol, peer_id, error)
        finally:
            writer.close()

    await daemon.add_binary_stream_handler(protocol, answer)


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(len(data).to_bytes(_LENGTH_BYTES, "big"))
    writer.write(data)
    await writer.drain()


async def _read(reader: asyncio.StreamReader, limit_bytes: int) -> bytes:
    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
    if length > limit_bytes:
        raise RequestError(f"at most {limit_bytes} bytes expected, {length} announced")
    return await reader.readexactly(length)
