"""The attacker's own process. It has real p2pd, keys of its own, and no scruples.

Started with one argument, a folder for keys and sockets. Reads commands as JSON lines, such as
{"do": "send", "who": "mallory", "kind": "noise", "count": 3}, does each, and answers it with one JSON
line. `who` names an identity; it comes into being with "appear". Commands of one process may overlap.
"""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from swarmd_protocol.codec import encode
from swarmd_protocol.envelope import EnvelopeLimits, open_envelope
from swarmd_protocol.messages import CatchUpReply, CatchUpRequest, Kind
from swarmd_protocol.topics import CATCH_UP_PROTOCOL, node_records_key, rollouts_topic

from hostile import dht
from hostile.forge import BAD, Forger
from hostile.poison import POISON
from swarmd.errors import NetworkError
from swarmd.gossip.dialer import Backoff, address_peer_id
from swarmd.gossip.libp2p import Libp2pSettings, Libp2pTransport
from swarmd.gossip.libp2p_bindings import (
    DHTID,
    P2PDaemonError,
    PeerID,
    StreamInfo,
    get_dht_time,
    p2pd_pb2,
)
from swarmd.gossip.libp2p_daemon import P2PDaemon
from swarmd.gossip.subscription import Subscription
from swarmd.identity import Identity, verify
from swarmd.tasks.manifest import Manifest

MANIFEST = Manifest.load("tiny")
TOPIC = rollouts_topic(MANIFEST.swarm_id)


class Mallory:
    """One identity of the attacker on the network."""

    def __init__(self, folder: Path, name: str, host: str, victim: str) -> None:
        home = folder / name
        home.mkdir()
        self.identity = Identity.create(home / "key")
        self.forger = Forger(self.identity, MANIFEST)
        self.victim = address_peer_id(victim) if victim else ""
        self.transport = Libp2pTransport(
            Libp2pSettings(
                identity_path=home / "key",
                peer_id=self.identity.peer_id,
                runtime_folder=home,
                listen=(f"/ip4/{host}/tcp/0",),
                join=(victim,) if victim else (),
                redial=Backoff(0.2, 1.0),
                enough_peers=0,
            ),
            lambda subkey, value: True,
        )
        self._heard = self.transport.subscribe(Subscription(TOPIC, 1000))

    @property
    def daemon(self) -> P2PDaemon:
        """p2pd, past all checks of the transport."""
        return self.transport._living().daemon

    async def arrive(self) -> None:
        """Be connected to the victim, and known by it to speak on the topic."""
        while self.victim and self.victim not in await self._topic_peers():  # noqa: ASYNC110  # p2pd has no event for it
            await asyncio.sleep(0.05)

    async def _topic_peers(self) -> set[str]:
        request = p2pd_pb2.PSRequest(type=p2pd_pb2.PSRequest.LIST_PEERS, topic=TOPIC)
        response = await self.daemon._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.PUBSUB, pubsub=request))
        return {str(PeerID(peer_id)) for peer_id in response.pubsub.peerIDs}

    async def say(self, data: bytes) -> bool:
        """Publish bytes as they are; whether p2pd took them."""
        try:
            await self.daemon.publish(TOPIC, data)
        except NetworkError:
            return False
        return True

    async def overhear(self, author: str) -> bytes:
        """A message that another node signed."""
        async for received in self._heard:
            if received.source == author:
                return bytes(received.data)
        raise RuntimeError("the transport was closed")

    @contextlib.asynccontextmanager
    async def stream(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A catch-up stream to the victim."""
        async with self.daemon.stream(self.victim, CATCH_UP_PROTOCOL) as pair:
            yield pair


class Attacks:
    """What can be asked for. Each method is a command; what it returns is the answer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._who: dict[str, Mallory] = {}
        self._exit = contextlib.AsyncExitStack()
        self._held: list[asyncio.StreamWriter] = []

    async def appear(self, who: str, host: str, victim: str = "") -> Any:
        """Come up under a new key at an address, connected to a victim."""
        mallory = Mallory(self._folder, who, host, victim)
        await self._exit.enter_async_context(mallory.transport)
        self._who[who] = mallory
        await mallory.arrive()
        return {"peer_id": mallory.identity.peer_id, "addresses": mallory.transport.state.addresses}

    async def vanish(self, who: str) -> Any:
        """Leave the network."""
        await self._who.pop(who).transport.__aexit__(None, None, None)

    async def send(self, who: str, kind: str, count: int = 1) -> Any:
        """Messages of one kind of `forge.BAD`."""
        mallory = self._who[who]
        make, _ = BAD[kind]
        return [await mallory.say(make(mallory.forger)) for _ in range(count)]

    async def replay(self, who: str, author: str, times: int) -> Any:
        """What an honest node said, again and again."""
        mallory = self._who[who]
        data = await mallory.overhear(author)
        return [await mallory.say(data) for _ in range(times)]

    async def steal(self, who: str, author: str) -> Any:
        """An honest node's group under the own name."""
        mallory = self._who[who]
        envelope = open_envelope(
            await mallory.overhear(author),
            verify,
            EnvelopeLimits(MANIFEST.swarm_id, Kind.ROLLOUT_GROUP, None),
            int(time.time() * 1000),
        )
        return await mallory.say(mallory.forger.envelope(payload=envelope.payload))

    async def poison(self, who: str, names: list[str]) -> Any:
        """Groups whose completions are meant to run, or to eat what there is."""
        mallory = self._who[who]
        sent = []
        for name in names:
            dataset, text = POISON[name]
            group = mallory.forger.group((text, "1"), task=mallory.forger.task(dataset))
            sent.append(await mallory.say(mallory.forger.envelope(group)))
        return sent

    async def flood(self, who: str, kind: str, per_second: float, seconds: float) -> Any:
        """Messages of one kind, or `valid` groups, at a rate."""
        mallory = self._who[who]
        make = BAD[kind][0] if kind in BAD else lambda forger: forger.envelope()
        began, sent, taken = time.monotonic(), 0, 0
        while (now := time.monotonic()) < began + seconds:
            due = int((now - began) * per_second) - sent
            batch = [make(mallory.forger) for _ in range(min(due, 50))]
            taken += sum(await asyncio.gather(*map(mallory.say, batch)))
            sent += len(batch)
            await asyncio.sleep(0.01)
        return {"sent": sent, "taken": taken}

    async def spam_records(self, who: str, count: int, addresses: list[str]) -> Any:
        """Node records of made-up nodes, each properly signed, put straight into the victim's DHT."""
        mallory = self._who[who]
        protocol = mallory.transport._living().records._node.protocol
        key = DHTID.generate(source=node_records_key(MANIFEST.swarm_id))

        async def store() -> int:
            made_up = Forger(Identity.generate(), MANIFEST)
            value = made_up.record(tuple(addresses), name="n" * 100)
            answers = await protocol.call_store(
                PeerID.from_base58(mallory.victim),
                [key],
                [encode(value)],
                get_dht_time() + 600.0,
                subkeys=[encode(made_up.identity.peer_id)],
            )
            return sum(map(bool, answers or ()))

        stored = 0
        while count > 0:
            stored += sum(await asyncio.gather(*(store() for _ in range(min(count, 50)))))
            count -= 50
        return stored

    async def call_dht(self, who: str, how: str) -> Any:
        """A request to the victim's DHT that no honest node makes; whether it was answered."""
        mallory = self._who[who]
        name, request = dht.REQUESTS[how](mallory.identity.peer_id)
        return await dht.call(mallory.daemon, mallory.victim, name, request)

    async def flood_dht(self, who: str, count: int) -> Any:
        """So many searches of the victim's DHT, one hundred at a time; how many were answered."""
        mallory = self._who[who]
        name, request = dht.search(mallory.identity.peer_id)
        answered = 0
        for _ in range(0, count, 100):
            calls = (dht.call(mallory.daemon, mallory.victim, name, request) for _ in range(100))
            answered += sum(await asyncio.gather(*calls))
        return answered

    async def answer_dht(self, who: str, how: str) -> Any:
        """Answer those who search the DHT: badly."""
        mallory = self._who[who]

        async def answer(data: bytes, caller: PeerID) -> bytes:
            reply: bytes = dht.ANSWERS[how](mallory.identity.peer_id).SerializeToString()
            return reply

        mallory.daemon._client.control.unary_handlers["DHTProtocol.rpc_find"] = answer

    async def serve_catch_up(self, who: str, how: str) -> Any:
        """Answer those who want to catch up: badly."""
        mallory = self._who[who]

        async def answer(
            info: StreamInfo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            with contextlib.suppress(OSError, EOFError):
                length = int.from_bytes(await reader.readexactly(8), "big")
                await reader.readexactly(length)
                await _ANSWERS[how](mallory, writer)
            writer.close()

        await mallory.daemon.add_binary_stream_handler(CATCH_UP_PROTOCOL, answer)
        return None

    async def hold_streams(self, who: str, how: str, count: int) -> Any:
        """Open catch-up streams to the victim and never finish: `silent`, or `slow` byte by byte."""
        mallory = self._who[who]
        opened = 0
        for _ in range(count):
            try:
                _, writer = await self._exit.enter_async_context(mallory.stream())
            except NetworkError:  # Refused: the victim has enough of it.
                continue
            opened += 1
            if how == "slow":
                asyncio.get_running_loop().create_task(_drip(writer))
            self._held.append(writer)
        return opened

    async def ask_catch_up(self, who: str, times: int) -> Any:
        """Ask the victim for all it has, again and again; how many bytes came in all."""
        mallory = self._who[who]
        request = encode(CatchUpRequest(MANIFEST.swarm_id, 0, 2**40, 2**40))
        received = 0
        for _ in range(times):
            with contextlib.suppress(NetworkError):
                received += len(
                    await mallory.transport.request(mallory.victim, CATCH_UP_PROTOCOL, request, 10)
                )
        return received

    async def half_open(self, host: str, port: int, count: int) -> Any:
        """TCP connections on which nothing is ever said."""
        for _ in range(count):
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(host, port)
                self._held.append(writer)
        return len(self._held)

    async def listen_deaf(self, host: str) -> Any:
        """A port that accepts connections and never says anything."""
        server = await asyncio.start_server(lambda reader, writer: self._held.append(writer), host, 0)
        await self._exit.enter_async_context(server)
        return server.sockets[0].getsockname()[1]

    async def leave(self) -> Any:
        """Close everything."""
        for writer in self._held:
            writer.close()
        await self._exit.aclose()
        return None


async def _drip(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        for byte in (1000).to_bytes(8, "big") + bytes(1000):
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.5)


async def _huge(mallory: Mallory, writer: asyncio.StreamWriter) -> None:
    """Announces 2^60 bytes and sends for as long as they are taken."""
    writer.write((2**60).to_bytes(8, "big"))
    while True:
        writer.write(bytes(65_536))
        await writer.drain()


async def _endless(mallory: Mallory, writer: asyncio.StreamWriter) -> None:
    """Announces as much as is allowed and trickles."""
    writer.write((16 * 1024 * 1024).to_bytes(8, "big"))
    while True:
        writer.write(b"\x00")
        await writer.drain()
        await asyncio.sleep(0.2)


async def _silent(mallory: Mallory, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3600)


async def _crowd(mallory: Mallory, writer: asyncio.StreamWriter) -> None:
    """A large reply of garbage envelopes and of valid groups, more than were asked for."""
    valid = tuple(mallory.forger.envelope() for _ in range(2000))
    reply = encode(CatchUpReply(envelopes=(bytes(1000),) * 2000 + valid))
    writer.write(len(reply).to_bytes(8, "big") + reply)
    await writer.drain()


_ANSWERS = {"huge": _huge, "endless": _endless, "silent": _silent, "crowd": _crowd}


async def _main() -> None:
    attacks = Attacks(Path(sys.argv[1]))
    reader = asyncio.StreamReader(limit=1 << 20)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer
    )
    running: set[asyncio.Task[None]] = set()
    while line := await reader.readline():
        command = json.loads(line)
        task = asyncio.create_task(_obey(attacks, command))
        running.add(task)
        task.add_done_callback(running.discard)
    await attacks.leave()


async def _obey(attacks: Attacks, command: dict[str, Any]) -> None:
    number, do = command.pop("number"), command.pop("do")
    try:
        answer = {"number": number, "result": await getattr(attacks, do)(**command)}
    except (NetworkError, P2PDaemonError, OSError) as error:
        answer = {"number": number, "error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    # The attacker has a machine of its own in life: here it must not take the victim's processor.
    os.nice(15)
    asyncio.run(_main())
