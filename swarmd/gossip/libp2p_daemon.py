"""One life of a p2pd process: start it, talk to it over its control socket, know when it died.

hivemind's P2P class is used for what it does well (streams and protobuf calls, which the DHT needs)
and started our way: with GossipSub on, without its identity probe, in our own runtime folder, tied
to our own life, and with an error that names the phase and p2pd's last words. p2pd is given no
bootstrap peers, because an unreachable one would hold up its start; the transport dials them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import secrets
import signal
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarmd.errors import NetworkError
from swarmd.gossip.libp2p_bindings import (
    P2P,
    Client,
    Multiaddr,
    P2PContext,
    P2PDaemonError,
    PeerID,
    p2pd_path,
    p2pd_pb2,
    read_pbmsg_safe,
    write_pbmsg,
)
from swarmd.gossip.libp2p_dht import Gate
from swarmd.gossip.listen import is_loopback
from swarmd.gossip.subscription import Received
from swarmd.gossip.transport import RequestError, TransportDownError

log = logging.getLogger(__name__)

_LAUNCHER = Path(__file__).with_name("libp2p_launch.py")
_LINE_BYTES = 1 << 20
_LINES_KEPT = 20
_CONTROL_TIMEOUT_SECONDS = 10.0
_STOP_TIMEOUT_SECONDS = 3.0
_LONGEST_ERROR = 200


@dataclass(frozen=True)
class DaemonSettings:
    """What p2pd is started with."""

    identity_path: Path
    """Ed25519 key in libp2p's file format; see swarmd.identity."""
    runtime_folder: Path
    """Existing folder with a short path, for the sockets."""
    startup_timeout_seconds: float
    """For each phase of the start."""


class P2PDaemon(P2P):  # type: ignore[misc]  # hivemind has no type information
    """A running p2pd. Make one with `start`, end it with `stop`; `wait_dead` returns when it is gone."""

    gate: Gate
    """What others call on this node passes it. To be set before a handler is added."""

    @classmethod
    async def start(cls, settings: DaemonSettings, listen: Sequence[str]) -> P2PDaemon:
        """Start p2pd and connect to it.

        Raises NetworkError naming the phase that failed and the last line p2pd printed.
        """
        daemon = cls()
        name = secrets.token_hex(4)
        daemon._daemon_listen_maddr = Multiaddr(f"/unix{settings.runtime_folder}/p2pd-{name}.sock")
        daemon._client_listen_maddr = Multiaddr(f"/unix{settings.runtime_folder}/streams-{name}.sock")
        daemon._lines = deque(maxlen=_LINES_KEPT)
        daemon._ready = asyncio.get_running_loop().create_future()
        try:
            patience = settings.startup_timeout_seconds
            await daemon._phase("starting p2pd", patience, daemon._launch(settings, listen))
            await daemon._phase("connecting to p2pd", patience, daemon._connect_control())
        finally:
            if not daemon._alive:
                await daemon.stop()
        return daemon

    @property
    def pid(self) -> int:
        """Process id of p2pd."""
        pid: int = self._child.pid
        return pid

    @property
    def last_line(self) -> str:
        """The last line p2pd printed, shortened."""
        return one_line(self._lines[-1]) if self._lines else "(it printed nothing)"

    @property
    def epitaph(self) -> str:
        """How it ended, for a log line."""
        code = self._child.returncode
        how = f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return f"{how}; its last line: {self.last_line}"

    async def wait_dead(self) -> None:
        """Return when the process has ended, for whatever reason."""
        await self._child.wait()

    async def stop(self) -> None:
        """End p2pd: ask, then kill. Removes its sockets. May be called twice."""
        self._alive = False
        if self._client is not None:
            self._client.close()
        for task in (self._listen_task, self._reader_task):
            if task is not None:
                task.cancel()
        if self._child is not None and self._child.returncode is None:
            self._signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(_STOP_TIMEOUT_SECONDS):
                    await self._child.wait()
            except TimeoutError:
                self._signal(signal.SIGKILL)
                await self._child.wait()
        self._remove_sockets()

    def _remove_sockets(self) -> None:
        for address in (self._daemon_listen_maddr, self._client_listen_maddr):
            Path(address["unix"]).unlink(missing_ok=True)

    def kill(self) -> None:
        """End a p2pd that does not answer any more."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        # Not by asyncio's process object: that one may reap the child behind its watcher's back.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    async def identify(self) -> tuple[str, tuple[str, ...]]:
        """Own peer id and the multiaddrs p2pd announces, each ending in /p2p/PEERID."""
        response = await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.IDENTIFY))
        peer_id = str(PeerID(response.identify.id))
        return peer_id, tuple(f"{Multiaddr(each)}/p2p/{peer_id}" for each in response.identify.addrs)

    async def connected(self) -> dict[str, tuple[str, ...]]:
        """Connected peers with the multiaddrs of their connections."""
        response = await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.LIST_PEERS))
        return {
            str(PeerID(peer.id)): tuple(str(Multiaddr(each)) for each in peer.addrs)
            for peer in response.peers
        }

    async def connect(self, peer_id: str, addresses: Sequence[str], timeout_seconds: float) -> None:
        """Connect to a peer. Raises RequestError with p2pd's reason."""
        request = p2pd_pb2.Request(
            type=p2pd_pb2.Request.CONNECT,
            connect=p2pd_pb2.ConnectRequest(
                peer=PeerID.from_base58(peer_id).to_bytes(),
                addrs=[Multiaddr(address).to_bytes() for address in addresses],
                timeout=max(1, int(timeout_seconds)),
            ),
        )
        await self._ask(request, timeout_seconds + _CONTROL_TIMEOUT_SECONDS)

    async def disconnect(self, peer_id: str) -> None:
        """Close all connections with a peer. It may open new ones. Raises RequestError."""
        peer = PeerID.from_base58(peer_id).to_bytes()
        await self._ask(
            p2pd_pb2.Request(
                type=p2pd_pb2.Request.DISCONNECT, disconnect=p2pd_pb2.DisconnectRequest(peer=peer)
            )
        )

    async def publish(self, topic: str, data: bytes) -> None:
        """Hand a message to GossipSub."""
        await self._ask(_pubsub(p2pd_pb2.PSRequest(type=p2pd_pb2.PSRequest.PUBLISH, topic=topic, data=data)))

    async def subscription(self, topic: str) -> AsyncGenerator[Received, None]:
        """Messages of a topic, our own included, until p2pd ends. Raises TransportDownError then."""
        request = _pubsub(p2pd_pb2.PSRequest(type=p2pd_pb2.PSRequest.SUBSCRIBE, topic=topic))
        async with self._control_connection() as (reader, writer):
            try:
                await write_pbmsg(writer, request)
                await _read_response(reader)
                while True:
                    message = p2pd_pb2.PSMessage()
                    await read_pbmsg_safe(reader, message)
                    # "from" is a Python keyword. p2pd has checked the signature of this peer.
                    source = _peer_name(getattr(message, "from"))
                    number = int.from_bytes(message.seqno, "big")
                    yield Received(source, message.data, number, arrived_at=time.monotonic())
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                raise TransportDownError("p2pd ended") from error

    @contextlib.asynccontextmanager
    async def stream(
        self, peer_id: str, protocol: str
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A new stream to a peer, closed at the end of the block. Raises RequestError."""
        request = p2pd_pb2.Request(
            type=p2pd_pb2.Request.STREAM_OPEN,
            streamOpen=p2pd_pb2.StreamOpenRequest(
                peer=PeerID.from_base58(peer_id).to_bytes(), proto=[protocol]
            ),
        )
        async with self._control_connection() as (reader, writer):
            try:
                await write_pbmsg(writer, request)
                await _read_response(reader)
                yield reader, writer
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                raise RequestError("the stream was closed before the reply was complete") from error

    async def _add_protobuf_unary_handler(
        self,
        handle_name: str,
        handler: Callable[[Any, P2PContext], Awaitable[Any]],
        input_protobuf_type: type[Any],
        balanced: bool = False,
    ) -> None:
        """In place of hivemind's, which parses whatever comes from whomever."""

        async def answer(data: bytes, remote_id: PeerID) -> bytes:
            request = self.gate.open(str(remote_id), data, input_protobuf_type)
            context = P2PContext(handle_name=handle_name, local_id=self.peer_id, remote_id=remote_id)
            reply: bytes = (await handler(request, context)).SerializeToString()
            return reply

        await self._client.add_unary_handler(handle_name, answer, balanced=balanced)

    async def _launch(self, settings: DaemonSettings, listen: Sequence[str]) -> None:
        arguments = self._make_process_args(
            sys.executable,
            "-I",
            "-S",
            _LAUNCHER,
            os.getpid(),
            p2pd_path(),
            listen=self._daemon_listen_maddr,
            id=settings.identity_path,
            hostAddrs=",".join(listen),
            idleTimeout=f"{max(30, settings.startup_timeout_seconds):.0f}s",
            dhtServer=True,
            connManager=True,
            autonat=True,
            natPortMap=not all(map(is_loopback, listen)),
            relay=True,
            # Two of them for each connection that strangers have relayed here; 16 MB by default.
            relayBufferSize=65_536,
            tls=True,
            pubsub=True,
            pubsubRouter="gossipsub",
            pubsubSign=True,
            pubsubSignStrict=True,
        )
        self._child = await asyncio.create_subprocess_exec(
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "GOLOG_LOG_LEVEL": "error", "GOLOG_LOG_FMT": "json"},
            limit=_LINE_BYTES,
            # Ctrl-C in a terminal is for us; p2pd is stopped when we are done with it.
            start_new_session=True,
        )
        if self._child.stdout is not None:
            self._reader_task = asyncio.create_task(self._read_lines(self._child.stdout), name="p2pd output")
        await self._ready

    async def _connect_control(self) -> None:
        self._client = await Client.create(
            control_maddr=self._daemon_listen_maddr, listen_maddr=self._client_listen_maddr
        )
        # These two end with an error of their own when p2pd dies; wait_dead is what reports it.
        for task in (self._client.control._read_task, self._client.control._write_task):
            task.add_done_callback(_forget_result)
        peer_id, _ = await self.identify()
        self.peer_id = PeerID.from_base58(peer_id)
        self._alive = True

    async def _phase(self, name: str, timeout_seconds: float, work: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(timeout_seconds):
                await work
        except TimeoutError as error:
            raise NetworkError(
                f"{name} took more than {timeout_seconds:g} s; its last line: {self.last_line}"
            ) from error
        except (OSError, EOFError, P2PDaemonError, RequestError) as error:
            raise NetworkError(
                f"{name} failed ({one_line(str(error)) or type(error).__name__}); "
                f"its last line: {self.last_line}"
            ) from error

    async def _read_lines(self, output: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await output.readline()
            except ValueError:
                continue  # Longer than the limit; asyncio has dropped it.
            if not line:
                break
            text = line.decode(errors="replace").rstrip()
            self._lines.append(text)
            log.debug("p2pd: %s", text)
            if text.startswith("Peer ID:") and not self._ready.done():
                self._ready.set_result(None)
        if not self._ready.done():
            self._ready.set_exception(P2PDaemonError("p2pd ended"))

    @contextlib.asynccontextmanager
    async def _control_connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A control connection of its own. Raises TransportDownError when p2pd is not there."""
        try:
            reader, writer = await asyncio.open_unix_connection(self._daemon_listen_maddr["unix"])
        except OSError as error:
            raise TransportDownError("p2pd is not running") from error
        try:
            yield reader, writer
        finally:
            writer.close()

    async def _ask(
        self, request: p2pd_pb2.Request, timeout_seconds: float = _CONTROL_TIMEOUT_SECONDS
    ) -> p2pd_pb2.Response:
        try:
            async with asyncio.timeout(timeout_seconds), self._control_connection() as (reader, writer):
                await write_pbmsg(writer, request)
                return await _read_response(reader)
        except TimeoutError as error:
            raise RequestError(f"p2pd did not answer in {timeout_seconds:g} s") from error
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            raise TransportDownError("p2pd ended") from error


@functools.lru_cache(maxsize=4096)
def _peer_name(peer_id: bytes) -> str:
    """Base58 of a peer id. Remembered: it costs more than the rest of receiving a message."""
    return str(PeerID(peer_id))


def one_line(text: str) -> str:
    """Text on one line, shortened, for a message to a person."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_ERROR else line[: _LONGEST_ERROR - 3] + "..."


def _pubsub(request: p2pd_pb2.PSRequest) -> p2pd_pb2.Request:
    return p2pd_pb2.Request(type=p2pd_pb2.Request.PUBSUB, pubsub=request)


async def _read_response(reader: asyncio.StreamReader) -> p2pd_pb2.Response:
    response = p2pd_pb2.Response()
    await read_pbmsg_safe(reader, response)
    if response.type == p2pd_pb2.Response.ERROR:
        raise RequestError(one_line(response.error.msg))
    return response


def _forget_result(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()
