"""What a stranger's messages cost a node, and what a flood does to the others' latency.

python tests/benchmarks/bench_gossip.py [--seconds 15] [--rate 2000] [--repeats 1] [--skip-flood]

First the daemon's time for one refused message of each kind, from the topic to the verdict. Then three
real p2pd: a node that receives, an honest peer at ten groups a second, and a flooder that publishes
valid groups, each in a process of its own; and before that the same without p2pd, in one process. The
latency is from the honest peer's publishing to the end of scoring, which is a pause of 5 ms here. Ends
with 1 when a figure is missed.
"""

import argparse
import asyncio
import contextlib
import itertools
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from swarmd_protocol.errors import Reason
from swarmd_protocol.messages import (
    CompletionMessage,
    FinishReason,
    Kind,
    RolloutGroupMessage,
    TaskReference,
)
from swarmd_protocol.topics import rollouts_topic

from swarmd.config import Config, GossipSection, PeersSection, SwarmSection
from swarmd.gossip.catch_up import RecentGroups
from swarmd.gossip.door import PeerDoor
from swarmd.gossip.libp2p import Libp2pSettings, Libp2pTransport
from swarmd.gossip.libp2p_bindings import p2pd_pb2, read_pbmsg_safe, write_pbmsg
from swarmd.gossip.neighbourhood import Neighbourhoods
from swarmd.gossip.peers import PeerBook
from swarmd.gossip.publisher import Author
from swarmd.gossip.reputation import Reputation, ReputationSettings
from swarmd.gossip.seen import ReplayWindow
from swarmd.gossip.shares import PeerShares, Share
from swarmd.gossip.subscriber import Subscriber
from swarmd.gossip.subscription import Received, Subscription
from swarmd.identity import Identity, verify
from swarmd.loops.receive import ReceiveLoop
from swarmd.loops.state import LoopState
from swarmd.monitor.loop_lag import LoopLag
from swarmd.network import Network
from swarmd.paths import Home
from swarmd.replay.buffer import ReplayBuffer
from swarmd.rewards.messages import ScoreReply
from swarmd.tasks.manifest import Manifest

MALFORMED_MICROSECONDS = 50
LATENCY_RATIO = 2.0
LAG_MILLISECONDS = 100
HONEST_RATE = 10.0
SCORING_SECONDS = 0.005
MESSAGES = 2_000
MANIFEST = Manifest.load("tiny")
UNLIMITED = Share(1e9, 1e12, 1e9, 10, 1, 1)


def main() -> int:
    """Print the figures; 1 when one is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each phase of the flood")
    parser.add_argument("--rate", type=float, default=2_000.0, help="messages a second of the flooder")
    parser.add_argument("--repeats", type=int, default=1, help="of all phases")
    parser.add_argument("--skip-flood", action="store_true", help="only what a refusal costs")
    parser.add_argument("--publish", nargs=2, metavar=("HOME", "ADDRESS"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.publish:
        home, address = chosen.publish
        asyncio.run(publish(Path(home), address, chosen.rate, chosen.seconds))
        return 0
    missed = print_refusals()
    if not chosen.skip_flood:
        missed |= asyncio.run(print_flood(chosen.rate, chosen.seconds, chosen.repeats))
    return int(missed)


def print_refusals() -> bool:
    """The cost of each kind of refusal; whether a malformed message costs more than promised."""
    missed = False
    print(f"one refused message, median of {MESSAGES} (microseconds of the daemon's loop)")
    for name, data, shares, reason in refused_messages():
        microseconds = asyncio.run(refuse(data, shares, reason))
        is_malformed = reason is Reason.MALFORMED
        missed |= is_malformed and microseconds > MALFORMED_MICROSECONDS
        limit = f"  (limit {MALFORMED_MICROSECONDS})" if is_malformed else ""
        print(f"  {name:<44} {microseconds:7.1f}{limit}")
    return missed


def refused_messages() -> list[tuple[str, Callable[[], bytes], Share, Reason]]:
    """Name, messages, what the sender may send, and the reason expected."""
    author = Author(MANIFEST.swarm_id, (identity := Identity.generate()).public_key, identity.sign)
    whole = sealed(author)
    broken = whole[:-1] + bytes([whole[-1] ^ 1])
    other = Author("ab" * 32, identity.public_key, identity.sign)
    deep = b"\x91" * 10_000
    no_bytes = Share(1e9, 1e-9, 1e9, 1, 1, 1)
    return [
        ("random bytes, 1 kB", lambda: secrets.token_bytes(1_000), UNLIMITED, Reason.MALFORMED),
        ("a claimed length of 4 GB", lambda: b"\xdd\xff\xff\xff\xff", UNLIMITED, Reason.MALFORMED),
        ("ten thousand nested arrays", lambda: deep, UNLIMITED, Reason.MALFORMED),
        ("an envelope cut short", lambda: whole[:-10], UNLIMITED, Reason.MALFORMED),
        ("of another swarm", lambda: sealed(other), UNLIMITED, Reason.WRONG_SWARM),
        ("a signature that is wrong", lambda: broken, UNLIMITED, Reason.BAD_SIGNATURE),
        ("a signed group of one completion", lambda: sealed(author, 1), UNLIMITED, Reason.BAD_GROUP_SIZE),
        ("a valid group over the sender's share", lambda: whole, no_bytes, Reason.RATE_LIMITED),
    ]


async def refuse(make: Callable[[], bytes], share: Share, reason: Reason) -> float:
    """Median microseconds from the topic to the verdict."""
    places = Neighbourhoods(())
    reputation = Reputation(
        ReputationSettings(ignore_below=-1e9, close_below=-1e9, newcomer_groups=1), places.of, time.time
    )
    peers = PeerBook("own", reputation)
    shares = PeerShares(share, places, lambda peer: False, time.monotonic)
    inbox = Subscription("topic", 16, PeerDoor(peers, shares, ReplayWindow(660)))
    limits = MANIFEST.group_limits(600, 60)
    subscriber = Subscriber(
        "own",
        inbox,
        verify,
        MANIFEST.envelope_limits(limits),
        limits,
        peers,
        RecentGroups(1, 1, 1),
        shares,
    )
    source = Identity.generate().peer_id
    spent = []
    messages = [Received(source, make(), number) for number in range(MESSAGES)]
    waiting = asyncio.ensure_future(anext(subscriber))
    await asyncio.sleep(0)
    for message in messages:
        began = time.perf_counter()
        inbox.push(message)
        while len(inbox):  # noqa: ASYNC110  # its end is what is measured
            await asyncio.sleep(0)
        spent.append(time.perf_counter() - began)
    waiting.cancel()
    await asyncio.sleep(0)
    counted = peers.rejected
    if counted.get(reason.value, 0) < MESSAGES // 2:
        sys.exit(f"expected {reason}, got {counted}")
    return 1e6 * statistics.median(spent)


HONEST_SEED, FLOOD_SEED = 2**30, 2**31
LOOPBACK = ("/ip4/127.0.0.1/tcp/1",)


def sealed(author: Author, completions: int = 8, seed: int = HONEST_SEED) -> bytes:
    """A group whose task says by whom and when it was made. The text has the length of a short answer."""
    now_ns = time.time_ns()
    message = RolloutGroupMessage(
        group_id=secrets.token_bytes(16),
        task=TaskReference(TASK.dataset, TASK.digest, seed, now_ns),
        completions=tuple(
            CompletionMessage(f"<answer>{number}</answer>", FinishReason.STOP)
            for number in range(completions)
        ),
        policy_version=1,
        model="tiny",
        created_ms=now_ns // 1_000_000,
    )
    return author.seal(message, Kind.ROLLOUT_GROUP, now_ns // 1_000_000)


TASK = MANIFEST.tasks[0]


async def publish(home: Path, address: str, rate: float, seconds: float) -> None:
    """Publish so many valid groups a second, as a peer of the node at `address`."""
    identity = Identity.load_or_create(home / "key")
    author = Author(MANIFEST.swarm_id, identity.public_key, identity.sign)
    settings = Libp2pSettings(home / "key", identity.peer_id, home, ("/ip4/127.0.0.1/tcp/0",), (address,))
    topic = rollouts_topic(MANIFEST.swarm_id)
    if rate <= HONEST_RATE:
        messages = (sealed(author) for _ in itertools.count())
    else:
        # The flooder lives elsewhere in truth: here it must not take the node's processor time.
        os.nice(19)
        messages = iter([sealed(author, seed=FLOOD_SEED) for _ in range(int(rate * seconds) + 100)])
    async with Libp2pTransport(settings, lambda subkey, value: False) as transport:
        transport.subscribe(Subscription(topic, 1))
        while not transport.state.connected:  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0.1)
        await asyncio.sleep(2.0)
        print("ready", flush=True)
        sys.stdin.readline()
        sent = await send(transport, topic, rate, seconds, messages)
        print(sent / seconds, flush=True)


async def send(
    transport: Libp2pTransport, topic: str, rate: float, seconds: float, messages: Iterator[bytes]
) -> int:
    """Publish at a rate, over one connection to p2pd. Returns how many it took in that time."""
    life = transport._life
    assert life is not None
    began, sent = time.monotonic(), 0
    async with life.daemon._control_connection() as (reader, writer):
        while (elapsed := time.monotonic() - began) < seconds:
            due = min(int(elapsed * rate) + 1 - sent, 50)
            for data in itertools.islice(messages, due):
                request = p2pd_pb2.PSRequest(type=p2pd_pb2.PSRequest.PUBLISH, topic=topic, data=data)
                await write_pbmsg(writer, p2pd_pb2.Request(type=p2pd_pb2.Request.PUBSUB, pubsub=request))
            for _ in range(due):
                await read_pbmsg_safe(reader, p2pd_pb2.Response())
            sent += due
            await asyncio.sleep(1 / rate)
    return sent


class Scorer:
    """Takes its time and notes when each honest group was through."""

    def __init__(self) -> None:
        self.latencies_ms: list[float] = []
        """Of the honest peer's groups."""

    async def score(self, reference: TaskReference, completions_G: tuple[str, ...]) -> ScoreReply:
        """One right, the others not."""
        await asyncio.sleep(SCORING_SECONDS)
        if reference.seed == HONEST_SEED:
            self.latencies_ms.append((time.time_ns() - reference.index) / 1e6)
        rewards_G = (1.0, *(0.0 for _ in completions_G[1:]))
        return ScoreReply("?", rewards_G, (None,) * len(completions_G), SCORING_SECONDS)


async def print_flood(rate: float, seconds: float, repeats: int) -> bool:
    """Honest latency without and with a flood; whether it, or the loop's lag, is above what is promised."""
    print(f"\n{rate:g} valid groups a second of one flooder, {HONEST_RATE:g} honest, {seconds:g} s each,")
    print(f"in turn {repeats} times; own: processor time of the loop in its longest block")
    missed = False
    for where, measure in (("in one process", in_one_process), ("over p2pd", over_p2pd)):
        phases = {name: [await measure(*each, seconds)] for name, each in settings(rate).items()}
        for _ in range(repeats - 1):
            for name, each in settings(rate).items():
                phases[name].append(await measure(*each, seconds))
        quiet = percentile([ms for phase in phases["no flood"] for ms in phase.latencies_ms], 99)
        for name, parts in phases.items():
            latencies_ms = [ms for part in parts for ms in part.latencies_ms]
            ratio = percentile(latencies_ms, 99) / quiet
            lag_ms, own_ms = max((part.lag_ms, part.own_lag_ms) for part in parts)
            missed |= ratio > LATENCY_RATIO or own_ms > LAG_MILLISECONDS
            print(
                f"  {where + ', ' + name:<32} {describe(latencies_ms)}, ratio {ratio:.2f} (limit 2), "
                f"lag {lag_ms:.0f} ms (own {own_ms:.0f}, limit {LAG_MILLISECONDS}), "
                f"{statistics.mean(part.sent_per_second for part in parts):.0f}/s sent"
            )
        print(f"  refused of the flooder at last: {phases['never closed'][-1].refused}")
    return missed


def settings(rate: float) -> dict[str, tuple[PeersSection, float]]:
    """What is compared: how peers are judged, and the flooder's rate."""
    return {
        "no flood": (PeersSection(), 0.0),
        "flooder closed": (PeersSection(), rate),
        "never closed": (PeersSection(close_below=-1e9, ignore_below=-1e9), rate),
    }


@dataclass
class Phase:
    """What was measured in one phase."""

    latencies_ms: list[float]
    lag_ms: float
    own_lag_ms: float
    sent_per_second: float
    refused: dict[str, int]
    """Of the flooder, by reason."""


async def in_one_process(section: PeersSection, rate: float, seconds: float) -> Phase:
    """As `over_p2pd`, with messages put before the node as p2pd would: what the node itself adds."""
    with tempfile.TemporaryDirectory(prefix="sw-", dir="/tmp") as folder:
        network, scorer, lag = prepare(Path(folder), section), Scorer(), LoopLag()
        honest, flooder = Identity.generate(), Identity.generate()
        network.neighbourhoods.note_connected({i.peer_id: LOOPBACK for i in (honest, flooder)})
        network.reputation.say(honest.peer_id, "allowed")
        author = Author(MANIFEST.swarm_id, flooder.public_key, flooder.sign)
        flood = iter([sealed(author, seed=FLOOD_SEED) for _ in range(int(rate * seconds) + 100)])
        inbox = network._subscription
        tasks = [asyncio.ensure_future(work) for work in (receive(network, scorer), lag.run())]
        began, sent = time.monotonic(), 0

        async def honestly() -> None:
            own = Author(MANIFEST.swarm_id, honest.public_key, honest.sign)
            for number in range(int(seconds * HONEST_RATE)):
                await asyncio.sleep(max(0.0, began + number / HONEST_RATE - time.monotonic()))
                inbox.push(Received(honest.peer_id, sealed(own), number))

        tasks.append(asyncio.ensure_future(honestly()))
        while (elapsed := time.monotonic() - began) < seconds:
            for data in itertools.islice(flood, int(elapsed * rate) - sent):
                inbox.push(Received(flooder.peer_id, data, sent))
                sent += 1
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.5)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        counts = refusals(network, flooder)
        return Phase(scorer.latencies_ms, lag.max_ms, lag.max_busy_ms, sent / seconds, counts)


def prepare(folder: Path, section: PeersSection) -> Network:
    """The network of a node that listens on loopback."""
    home = Home(folder / "home")
    home.prepare()
    home.runtime.mkdir()
    config = Config(
        swarm=SwarmSection(listen=("/ip4/127.0.0.1/tcp/0",)),
        gossip=GossipSection(catch_up_groups=0),
        peers=section,
    )
    return Network(config, home, Identity.load_or_create(home.identity_key), MANIFEST, "tiny", LoopState())


def refusals(network: Network, peer: Identity) -> dict[str, int]:
    """What was refused of a peer, by reason."""
    return {view.peer_id: view.rejected for view in network.peers.views(())}.get(peer.peer_id, {})


async def over_p2pd(section: PeersSection, rate: float, seconds: float) -> Phase:
    """As `settings` says, with three p2pd."""
    with tempfile.TemporaryDirectory(prefix="sw-", dir="/tmp") as folder:
        network, scorer, lag = prepare(Path(folder), section), Scorer(), LoopLag()
        async with network, contextlib.AsyncExitStack() as stack:
            address = network.transport.state.addresses[0]
            honest = await stack.enter_async_context(peer(Path(folder) / "h", address, HONEST_RATE, seconds))
            network.reputation.say(Identity.load(Path(folder) / "h" / "key").peer_id, "allowed")
            peers = [honest]
            if rate:
                peers.append(
                    await stack.enter_async_context(peer(Path(folder) / "f", address, rate, seconds))
                )
            tasks = [
                asyncio.ensure_future(work) for work in (receive(network, scorer), network.run(), lag.run())
            ]
            for each in peers:
                each.stdin.write(b"go\n")
            reached = [float(await each.stdout.readline()) for each in peers]
            await asyncio.sleep(1.0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        flooder = Identity.load(Path(folder) / ("f" if rate else "h") / "key")
        counts = refusals(network, flooder)
        return Phase(scorer.latencies_ms, lag.max_ms, lag.max_busy_ms, reached[-1], counts)


async def receive(network: Network, scorer: Scorer) -> None:
    """The receive loop of a node with one verifier."""
    buffer = ReplayBuffer(
        capacity_groups=512,
        capacity_bytes=64_000_000,
        peer_share=0.5,
        max_age_seconds=600,
        max_policy_lag=16,
        max_uses=1,
        clock=time.monotonic,
    )
    loop = ReceiveLoop(MANIFEST, network.subscriber, scorer, buffer, network.peers, 1, network.shares)
    await loop.run(LoopState())


@contextlib.asynccontextmanager
async def peer(
    home: Path, address: str, rate: float, seconds: float
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A publisher in a process of its own, connected and waiting for the word."""
    os.mkdir(home)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        __file__,
        *("--publish", str(home), address, "--rate", str(rate), "--seconds", str(seconds)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert await process.stdout.readline() == b"ready\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def describe(latencies_ms: list[float]) -> str:
    """Median and 99th percentile."""
    middle, late = statistics.median(latencies_ms), percentile(latencies_ms, 99)
    return f"{len(latencies_ms):4} groups, median {middle:5.1f} ms, p99 {late:6.1f} ms"


def percentile(values: list[float], percent: int) -> float:
    """By nearest rank."""
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]


if __name__ == "__main__":
    sys.exit(main())
