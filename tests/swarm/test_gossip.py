"""The whole gossip room on real p2pd: several nodes on loopback that publish, receive, catch up,
tell about themselves, and find each other again.
"""

import asyncio
import contextlib
import secrets
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from swarmd_protocol.envelope import SIGNATURE_DOMAIN, EnvelopeLimits
from swarmd_protocol.messages import (
    PROTOCOL_VERSION,
    CompletionMessage,
    FinishReason,
    Kind,
    NodeRecordMessage,
    RolloutGroupMessage,
    TaskReference,
)
from swarmd_protocol.topics import CATCH_UP_PROTOCOL, rollouts_topic
from swarmd_protocol.validation import GroupLimits

from swarmd.gossip import shares
from swarmd.gossip.catch_up import CatchUp, CatchUpServer, RecentGroups
from swarmd.gossip.dialer import Backoff
from swarmd.gossip.door import PeerDoor
from swarmd.gossip.libp2p import Libp2pSettings, Libp2pTransport
from swarmd.gossip.listen import ListenPorts
from swarmd.gossip.neighbourhood import Neighbourhoods
from swarmd.gossip.peers import PeerBook, load_known_peers, save_known_peers
from swarmd.gossip.publisher import Author, Publisher
from swarmd.gossip.records import NodeRecords, fetch_manifests, record_check
from swarmd.gossip.reputation import Reputation, ReputationSettings
from swarmd.gossip.seen import ReplayWindow
from swarmd.gossip.shares import PeerShares, Share
from swarmd.gossip.subscriber import OpenedGroup, Subscriber
from swarmd.gossip.subscription import Subscription
from swarmd.gossip.transport import EQUAL_STANDING
from swarmd.identity import Identity, verify
from swarmd.types import Completion, Prompt, RolloutGroup

pytestmark = pytest.mark.swarm

SWARM = "ab" * 32
MANIFEST = "name = 'test'"
SHARE = Share(
    messages_per_second=5,
    bytes_per_second=500_000,
    verifier_seconds_per_second=1,
    burst_seconds=10,
    newcomer_part=1,
    neighbourhood_shares=4,
)
LIMITS = GroupLimits(
    group_size_min=2,
    group_size_max=8,
    max_completion_characters=10_000,
    max_completion_tokens=1_000,
    task_digests={"arc": "d1"},
    held_out=(0, 100),
    max_age_ms=600_000,
    max_skew_ms=60_000,
)


@pytest.fixture
def folder() -> Iterator[Path]:
    # Unix socket paths are short; pytest's own folders are not.
    path = Path(tempfile.mkdtemp(prefix="sw-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


class Node:
    """One node's gossip, as the daemon puts it together."""

    def __init__(
        self,
        folder: Path,
        name: str,
        join: tuple[str, ...] = (),
        listen: str = "/ip4/127.0.0.1/tcp/0",
    ) -> None:
        home = folder / name
        home.mkdir(exist_ok=True)
        self.name = name
        self.identity = Identity.load_or_create(home / "key")
        self.transport = Libp2pTransport(
            Libp2pSettings(
                identity_path=home / "key",
                peer_id=self.identity.peer_id,
                runtime_folder=home,
                listen=(listen,),
                join=join,
                redial=Backoff(min_seconds=0.2, max_seconds=1.0),
            ),
            record_check(verify),
            msgspec.structs.replace(EQUAL_STANDING, is_closed=lambda peer: self.reputation.is_closed(peer)),
        )
        places = Neighbourhoods(("127.0.0.0/8",))
        self.reputation = Reputation(ReputationSettings(), places.of, time.time)
        self.peers = PeerBook(self.identity.peer_id, self.reputation)
        peer_shares = PeerShares(SHARE, places, lambda peer: False, time.monotonic)
        self.recent = RecentGroups(100, 4_000_000, 600_000)
        author = Author(SWARM, self.identity.public_key, self.identity.sign)
        self.publisher = Publisher(self.transport, author, LIMITS, 900_000, "tiny", None, self.recent)
        door = PeerDoor(self.peers, peer_shares, ReplayWindow(660))
        inbox = self.transport.subscribe(Subscription(rollouts_topic(SWARM), 1_024, door))
        self.subscriber = Subscriber(
            self.identity.peer_id,
            inbox,
            verify,
            EnvelopeLimits(SWARM, Kind.ROLLOUT_GROUP, 600_000),
            LIMITS,
            self.peers,
            self.recent,
        )
        server = CatchUpServer(SWARM, self.recent, 100, 4_000_000)
        self.transport.serve(CATCH_UP_PROTOCOL, server.answer)
        self.catch_up = CatchUp(self.transport, SWARM, inbox, 100, 4_000_000, 600)
        self.records = NodeRecords(
            self.transport, author, self.describe, MANIFEST, self.peers, verify, 1.0, 60.0, 60.0
        )
        self.opened: list[OpenedGroup] = []

    @property
    def peer_id(self) -> str:
        return self.identity.peer_id

    @property
    def addresses(self) -> tuple[str, ...]:
        return self.transport.state.addresses

    def describe(self) -> NodeRecordMessage:
        return NodeRecordMessage(
            name=self.name,
            model="tiny",
            software="swarmd 1",
            round=1,
            policy_version=1,
            addresses=self.addresses,
            created_ms=int(time.time() * 1000),
        )

    def is_connected_to(self, *others: "Node") -> bool:
        return all(other.peer_id in self.transport.state.connected for other in others)

    def heard(self, author: "Node") -> set[str]:
        """Ids of the groups of an author that arrived here."""
        return {group.message.group_id.hex() for group in self.opened if group.author == author.peer_id}

    def rejected(self, author: "Node") -> dict[str, int]:
        """What was refused here of a peer."""
        return {view.peer_id: view.rejected for view in self.peers.views(())}.get(author.peer_id, {})

    async def publish(self) -> str:
        """Publish a new group; its id."""
        group_id = secrets.token_hex(16)
        completions_G = (Completion("a", FinishReason.STOP), Completion("b", FinishReason.LENGTH))
        group = RolloutGroup(
            group_id=group_id,
            author=self.peer_id,
            is_local=True,
            task=TaskReference("arc", "d1", 1_000, 0),
            prompt=Prompt("plain", "?"),
            completions_G=completions_G,
            rewards_G=(0.0, 1.0),
            policy_version=1,
            created_at=time.time(),
            received_at=0.0,
            size_bytes=10,
        )
        assert await self.publisher.publish(group) is None
        return group_id

    async def _receive(self) -> None:
        async for opened in self.subscriber:
            self.opened.append(opened)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Node"]:
        async with self.transport:
            tasks = [
                asyncio.create_task(self._receive()),
                asyncio.create_task(self.records.run()),
                asyncio.create_task(self.catch_up.run()),
            ]
            try:
                yield self
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                assert not [task for task in tasks if not task.cancelled() and task.exception()]


async def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0.05)


async def until_put_out(node: Node, by: Node) -> None:
    """Until the connection is closed. The node dials again at once, so its snapshot may never show it."""
    async with asyncio.timeout(30):
        while by.peer_id in await node.transport._living().daemon.connected():  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.02)


async def until_heard(author: Node, *listeners: Node, seconds: float = 30) -> None:
    """Until a group that the author publishes in this time has reached all listeners."""
    published: set[str] = set()
    async with asyncio.timeout(seconds):
        while not all(listener.heard(author) & published for listener in listeners):
            published.add(await author.publish())
            await asyncio.sleep(0.2)


async def test_three_nodes_exchange_groups_and_know_each_other_by_name(folder: Path) -> None:
    async with Node(folder, "a").running() as a:
        b, c = Node(folder, "b", join=a.addresses), Node(folder, "c", join=a.addresses)
        async with b.running(), c.running():
            await until_heard(a, b, c)
            await until_heard(b, a, c)
            await until_heard(c, a, b)
            # With the mesh in place nothing is lost.
            ids = {await node.publish() for node in (a, b, c) for _ in range(20)}
            nodes = (a, b, c)
            await until(lambda: all(len(set().union(*map(n.heard, nodes)) & ids) == 40 for n in nodes))
            names = {"a", "b", "c"}
            await until(
                lambda: all(names <= {n.name} | {view.name for view in n.peers.views(())} for n in nodes)
            )
            # b and c joined only a, and found each other.
            await until(lambda: b.is_connected_to(c) and c.is_connected_to(b))
            assert a.peers.rejected.keys() <= {"duplicate"}
            assert all(node.transport.state.dht_requests["answered"] > 10 for node in nodes)
            assert not any(node.transport.state.dht_requests.get("refused") for node in nodes)
            assert await fetch_manifests(c.transport, SWARM, verify) == (MANIFEST,)


async def test_a_late_joiner_catches_up_on_what_was_published_before(folder: Path) -> None:
    async with Node(folder, "a").running() as a:
        async with Node(folder, "b", join=a.addresses).running() as b:
            await until_heard(b, a)
            ids = {await b.publish() for _ in range(10)}
            await until(lambda: ids <= a.heard(b))
        # b is gone; a passes on what b signed.
        own = {await a.publish() for _ in range(3)}
        async with Node(folder, "late", join=a.addresses).running() as late:
            await until(lambda: ids <= late.heard(b) and own <= late.heard(a))
            assert late.catch_up.result.envelopes >= 13


async def test_a_bootstrap_peer_is_joined_each_time_it_comes_up(folder: Path) -> None:
    with ListenPorts.take(["/ip4/127.0.0.1/tcp/0"]) as ports:
        listen = ports.addresses[0]
    key = folder / "bootstrap"
    key.mkdir()
    peer_id = Identity.create(key / "key").peer_id
    async with Node(folder, "node", join=(f"{listen}/p2p/{peer_id}",)).running() as node:
        await until(lambda: node.transport.state.bootstrap[0].attempts >= 2)
        (status,) = node.transport.state.bootstrap
        assert not status.reachable
        assert "refuses connections" in str(status.last_error)
        for _ in range(3):
            async with Node(folder, "bootstrap", listen=listen).running() as bootstrap:
                await until(lambda: node.transport.state.bootstrap[0].reachable)
                await until_heard(bootstrap, node)
                await until_heard(node, bootstrap)
            await until(lambda: not node.transport.state.bootstrap[0].reachable)
        assert node.transport.state.restarts == 0


async def test_dead_join_addresses_do_not_delay_the_live_one(folder: Path) -> None:
    dead = Identity.generate().peer_id
    # Accepts connections and never says anything: a dial takes until its time-out.
    silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    async with silent, Node(folder, "a").running() as a:
        join = (
            f"/ip4/127.0.0.1/tcp/{port}/p2p/{dead}",
            f"/ip4/127.0.0.1/tcp/1/p2p/{dead}",
            f"/dns4/no-such-host.invalid/tcp/31337/p2p/{dead}",
            *a.addresses,
        )
        async with Node(folder, "b", join=join).running() as b:
            await until(lambda: b.is_connected_to(a))
            await until(lambda: all(status.attempts for status in b.transport.state.bootstrap[1:3]))
            hanging, refusing, unknown, live = b.transport.state.bootstrap
            assert hanging.attempts == 0
            assert "refuses connections" in str(refusing.last_error)
            assert "does not resolve" in str(unknown.last_error)
            assert live.reachable
            assert live.last_error is None


async def test_the_others_stay_together_when_the_bootstrap_peer_is_gone(folder: Path) -> None:
    bootstrap = Node(folder, "a")
    async with contextlib.AsyncExitStack() as stack:
        running = await stack.enter_async_context(contextlib.AsyncExitStack())
        await running.enter_async_context(bootstrap.running())
        b = await stack.enter_async_context(Node(folder, "b", join=bootstrap.addresses).running())
        c = await stack.enter_async_context(Node(folder, "c", join=bootstrap.addresses).running())
        await until(lambda: b.is_connected_to(c))
        await until_heard(b, c)
        await running.aclose()
        await until(lambda: not b.is_connected_to(bootstrap))
        await until_heard(b, c)
        await until_heard(c, b)


async def test_peers_of_the_last_run_are_found_without_the_bootstrap_peer(folder: Path) -> None:
    remembered = folder / "peers.json"
    async with Node(folder, "a").running() as a:
        async with Node(folder, "b", join=a.addresses).running() as b:
            await until(lambda: any(view.addresses for view in b.peers.views(())))
            save_known_peers(remembered, b.peers.known_peers(), b.transport.state.connected)
        again = Node(folder, "b")
        again.transport.add_known_peers(load_known_peers(remembered)[0])
        async with again.running():
            await until(lambda: again.is_connected_to(a))
            await until_heard(again, a)


async def test_garbage_on_the_topic_is_counted_and_stops_nobody(folder: Path) -> None:
    async with Node(folder, "a").running() as a, Node(folder, "b", join=a.addresses).running() as b:
        await until_heard(b, a)
        for garbage in (b"", b"\xdd\xff\xff\xff\xff", secrets.token_bytes(1_000)):
            await b.transport.publish(rollouts_topic(SWARM), garbage)
        await until(lambda: a.peers.rejected.get("malformed", 0) == 3)
        (view,) = [view for view in a.peers.views(()) if view.peer_id == b.peer_id]
        assert view.rejected["malformed"] == 3
        await until_heard(b, a)


async def test_a_flood_of_valid_groups_closes_its_sender_and_takes_nothing_from_the_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A flood that a slow machine can make in a second.
    monkeypatch.setattr(shares, "FLOOD", 3.0)
    async with Node(folder, "a").running() as a:
        honest, flooder = Node(folder, "honest", join=a.addresses), Node(folder, "flooder")
        async with honest.running(), flooder.running():
            daemon = flooder.transport._life.daemon if flooder.transport._life else None
            assert daemon is not None
            await daemon.connect(a.peer_id, [a.addresses[0].removesuffix(f"/p2p/{a.peer_id}")], 10)
            await until_heard(honest, a)
            await until_heard(flooder, a)
            while not a.reputation.is_closed(flooder.peer_id):
                await asyncio.gather(*(flooder.publish() for _ in range(50)))
            # The connection is closed in truth: the other end sees it too.
            await until(lambda: not flooder.is_connected_to(a))
            refused = a.rejected(flooder)
            assert refused["rate_limited"] >= 50
            assert refused["flooding"] >= 50
            # An honest peer's groups arrive all the time, and nothing of it is on another's name.
            ids = {await honest.publish() for _ in range(10)}
            await until(lambda: ids <= a.heard(honest))
            assert a.rejected(honest).keys() <= {"duplicate"}
            # It may dial again, for a moment.
            await until(lambda: not a.is_connected_to(flooder))


async def test_a_banned_peer_is_put_out_and_not_heard_through_others_until_it_is_allowed(
    folder: Path,
) -> None:
    async with Node(folder, "a").running() as a:
        b, c = Node(folder, "b", join=a.addresses), Node(folder, "c", join=a.addresses)
        async with b.running(), c.running():
            await until_heard(b, a, c)
            await until(lambda: b.is_connected_to(c))
            a.reputation.say(b.peer_id, "banned")
            await until_put_out(b, a)
            assert not a.is_connected_to(b)
            heard = a.heard(b)
            ids = {await b.publish() for _ in range(5)}
            await until(lambda: ids <= c.heard(b))
            await until(lambda: a.rejected(b).get("banned", 0) >= 5)
            assert a.heard(b) == heard
            await until_heard(c, a)
            assert a.rejected(c).keys() <= {"duplicate"}
            a.reputation.say(b.peer_id, "allowed")
            await until_heard(b, a)
            await until(lambda: a.is_connected_to(b))


class NewerBody(msgspec.Struct, frozen=True):
    """An envelope's body as a later minor version may write it: one field more."""

    version: int
    kind: str
    swarm_id: str
    author: bytes
    created_ms: int
    payload: bytes
    urgency: dict[str, int]


def newer_envelope(node: Node, group_id: bytes, **changes: object) -> bytes:
    """What a newer swarmd would publish: fields that this one does not know, in body and message."""
    message = msgspec.to_builtins(
        RolloutGroupMessage(
            group_id=group_id,
            task=TaskReference("arc", "d1", 1_000, 0),
            completions=(
                CompletionMessage("a", FinishReason.STOP),
                CompletionMessage("b", FinishReason.LENGTH),
            ),
            policy_version=1,
            model="tiny",
            created_ms=int(time.time() * 1000),
        ),
        builtin_types=(bytes,),
    )
    message |= {"mood": [1, {"deep": None}]}
    message["completions"][0]["tokens"] = 3
    body = NewerBody(
        version=PROTOCOL_VERSION,
        kind=Kind.ROLLOUT_GROUP,
        swarm_id=SWARM,
        author=node.identity.public_key,
        created_ms=int(time.time() * 1000),
        payload=msgspec.msgpack.encode(message),
        urgency={"level": 1},
    )
    encoded = msgspec.msgpack.encode(msgspec.structs.replace(body, **changes))
    return msgspec.msgpack.encode((encoded, node.identity.sign(SIGNATURE_DOMAIN + encoded)))


async def test_newer_and_older_nodes_share_a_swarm_and_ignore_what_they_do_not_know(folder: Path) -> None:
    async with Node(folder, "new").running() as new:
        async with Node(folder, "old", join=new.addresses).running() as old:
            await until_heard(new, old)
            ids: set[str] = set()
            novel = {"unsupported_version", "unknown_kind"}
            async with asyncio.timeout(30):
                while not (ids & old.heard(new) and old.rejected(new).keys() == novel):
                    ids.add((known := secrets.token_bytes(16)).hex())
                    for envelope in (
                        newer_envelope(new, secrets.token_bytes(16), version=PROTOCOL_VERSION + 1),
                        newer_envelope(new, secrets.token_bytes(16), kind="poem"),
                        newer_envelope(new, known),
                    ):
                        await new.transport.publish(rollouts_topic(SWARM), envelope)
                    await asyncio.sleep(0.3)
            assert old.reputation.view(new.peer_id).score >= 0  # Nobody's fault.
            await until_heard(new, old)
            await until_heard(old, new)
