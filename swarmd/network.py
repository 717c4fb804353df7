"""The network side of a node that is not isolated: transport, publisher, subscriber, records,
catch-up and peer book, built for one swarm and introduced to each other.

Network trouble never reaches training: what fails here is told in the status and tried again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from swarmd_protocol.messages import NodeRecordMessage
from swarmd_protocol.topics import CATCH_UP_PROTOCOL, rollouts_topic

from swarmd import __version__
from swarmd.config import Config, PeersSection
from swarmd.gossip.catch_up import CatchUp, CatchUpServer, RecentGroups
from swarmd.gossip.clock_skew import ClockSkew
from swarmd.gossip.dialer import Backoff
from swarmd.gossip.door import PeerDoor, RequestDoor
from swarmd.gossip.libp2p import Libp2pSettings, Libp2pTransport
from swarmd.gossip.neighbourhood import Neighbourhoods
from swarmd.gossip.peers import PeerBook, load_known_peers, save_known_peers
from swarmd.gossip.publisher import Author, Publisher
from swarmd.gossip.records import NodeRecords, record_check
from swarmd.gossip.reputation import Reputation, ReputationSettings, judge
from swarmd.gossip.seen import ReplayWindow
from swarmd.gossip.shares import PeerShares, Share
from swarmd.gossip.subscriber import Subscriber
from swarmd.gossip.subscription import Subscription
from swarmd.gossip.transport import KnownPeer, Standing
from swarmd.identity import Identity, verify
from swarmd.loops.state import LoopState
from swarmd.paths import Home
from swarmd.tasks.manifest import Manifest

log = logging.getLogger("swarmd.network")

PEERS_SAVE_SECONDS = 60.0
PEERS_LOOK_SECONDS = 1.0


class Network:
    """What a node needs to take part in a swarm. Use as `async with`."""

    def __init__(
        self, config: Config, home: Home, identity: Identity, manifest: Manifest, model: str, state: LoopState
    ) -> None:
        gossip = config.gossip
        self._config = config
        self._home = home
        self._manifest = manifest
        self._model = model
        self._state = state
        self._name = config.node.name
        self._publisher: Publisher | None = None
        self._remembered: tuple[KnownPeer, ...] = ()
        self._author = Author(manifest.swarm_id, identity.public_key, identity.sign)
        self._group_limits = manifest.group_limits(
            gossip.max_message_age_seconds, gossip.max_clock_skew_seconds
        )
        self.neighbourhoods = Neighbourhoods(config.peers.exempt_networks)
        self.clock_skew = ClockSkew()
        self.reputation = Reputation(_settings(config.peers), self.neighbourhoods.of, _steady_clock())
        self.peers = PeerBook(identity.peer_id, self.reputation)
        # Requests to the DHT have accounts of their own: a peer that asks much may still publish.
        self.shares, self._requests = (
            PeerShares(_share(config.peers), self.neighbourhoods, self.reputation.is_new, time.monotonic)
            for _ in range(2)
        )
        self.transport = Libp2pTransport(
            Libp2pSettings(
                identity_path=home.identity_key,
                peer_id=identity.peer_id,
                runtime_folder=home.runtime,
                listen=config.swarm.listen,
                join=config.swarm.join,
                startup_timeout_seconds=gossip.startup_timeout_seconds,
                redial=Backoff(gossip.redial_min_seconds, gossip.redial_max_seconds),
                max_failed_starts=config.workers.max_fast_failures,
                failed_starts_seconds=config.workers.failure_window_seconds,
            ),
            record_check(verify),
            Standing(
                is_closed=self.reputation.is_closed,
                is_known=self.peers.is_known,
                admits=RequestDoor(self.peers, self._requests).admits,
                blame=self.peers.note_rejected,
            ),
        )
        self._recent = RecentGroups(
            max(1, gossip.catch_up_groups), gossip.catch_up_bytes, self._group_limits.max_age_ms
        )
        remembered_seconds = gossip.max_message_age_seconds + gossip.max_clock_skew_seconds
        self._subscription = self.transport.subscribe(
            Subscription(
                rollouts_topic(manifest.swarm_id),
                gossip.receive_queue_messages,
                PeerDoor(self.peers, self.shares, ReplayWindow(remembered_seconds)),
                capacity_bytes=gossip.receive_queue_bytes,
                # Where there are several verifiers, no peer has all of them.
                at_once=max(1, config.rewards.verifiers - 1),
            )
        )
        self.subscriber = Subscriber(
            identity.peer_id,
            self._subscription,
            verify,
            manifest.envelope_limits(self._group_limits),
            self._group_limits,
            self.peers,
            self._recent,
            self.shares,
            self.clock_skew,
        )

    async def __aenter__(self) -> Network:
        """Bring the transport up. Raises NetworkError when p2pd does not start."""
        problem = self.reputation.load(self._home.reputation_file)
        self._remembered, problem_with_peers = load_known_peers(self._home.peers_file)
        self.transport.add_known_peers(self._remembered)
        for line in filter(None, (problem, problem_with_peers)):
            log.warning("%s", line)
        server = CatchUpServer(
            self._manifest.swarm_id,
            self._recent,
            self._config.gossip.catch_up_groups,
            self._config.gossip.catch_up_bytes,
            self.peers,
        )
        self.transport.serve(CATCH_UP_PROTOCOL, server.answer)
        await self.transport.__aenter__()
        return self

    async def __aexit__(self, *failure: object) -> None:
        """Take it down; peers are remembered for the next run."""
        self._save_peers()
        await self.transport.__aexit__(None, None, None)

    def publisher(self, tokenizer_fingerprint: str) -> Publisher:
        """The publisher, once the tokenizer is known."""
        self._publisher = Publisher(
            self.transport,
            self._author,
            self._group_limits,
            self._manifest.max_message_bytes,
            self._model,
            tokenizer_fingerprint if self._config.gossip.share_logprobs else None,
            self._recent,
        )
        return self._publisher

    def judge(self, peer_id: str, word: str) -> str:
        """Take the operator's word on a peer (ban, allow, forget) and keep it. Returns the peer's state.

        Raises SwarmdError for what is neither, and when it cannot be written.
        """
        return judge(self.reputation, self._home.reputation_file, peer_id, word)

    def renew(self, config: Config) -> None:
        """Take over what can change while the node runs: `config_renewal` has the keys."""
        self.shares.share = self._requests.share = _share(config.peers)
        self.reputation.settings = _settings(config.peers)
        self.transport.join(config.swarm.join)

    @property
    def not_sent(self) -> int:
        """Own groups that were ready while the network was down; peers can still catch up on them."""
        return self._publisher.stats.not_sent if self._publisher else 0

    async def run(self) -> None:
        """Keep records, catch up once, and remember peers, until cancelled."""
        gossip = self._config.gossip
        records = NodeRecords(
            self.transport,
            self._author,
            self._describe,
            self._manifest.to_toml(),
            self.peers,
            verify,
            gossip.record_interval_seconds,
            gossip.record_ttl_seconds,
            gossip.max_clock_skew_seconds,
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(records.run(), name="records")
            tasks.create_task(self._catch_up(), name="catch-up")
            tasks.create_task(self._remember_peers(), name="peers")

    async def _catch_up(self) -> None:
        gossip = self._config.gossip
        if gossip.catch_up_groups == 0:
            return
        result = await CatchUp(
            self.transport,
            self._manifest.swarm_id,
            self._subscription,
            gossip.catch_up_groups,
            gossip.catch_up_bytes,
            gossip.max_message_age_seconds,
            self.peers,
            self.subscriber.caught_up_from,
        ).run()
        if result.envelopes:
            log.info("caught up: %d groups from %d peers", result.envelopes, result.peers)

    async def _remember_peers(self) -> None:
        saved_at = time.monotonic()
        while True:
            await asyncio.sleep(PEERS_LOOK_SECONDS)
            connected = self.transport.state.connected
            self.peers.note_connected(connected)
            self.neighbourhoods.note_connected(connected)
            if line := self.clock_skew.change():
                log.warning("%s", line)
            if time.monotonic() - saved_at > PEERS_SAVE_SECONDS:
                saved_at = time.monotonic()
                self._save_peers()

    def _save_peers(self) -> None:
        try:
            # Peers in good standing stay, heard of in this run or not: whoever was met first this time
            # may have seen to it.
            known = {peer.peer_id: peer for peer in (*self._remembered, *self.peers.known_peers())}
            worth = sorted(known.values(), key=lambda peer: self.peers.is_known(peer.peer_id))
            save_known_peers(self._home.peers_file, worth, self.transport.state.connected)
            self.reputation.save(self._home.reputation_file)
        except OSError as error:
            # For the next run; this one goes on without.
            log.warning("peers cannot be remembered: %s", error.strerror or error)

    def _describe(self) -> NodeRecordMessage:
        return NodeRecordMessage(
            name=self._name,
            model=self._model,
            software=f"swarmd {__version__}",
            round=self._state.round,
            policy_version=self._state.policy_version,
            addresses=self.transport.state.addresses[:16],
            created_ms=int(time.time() * 1000),
        )


def _steady_clock() -> Callable[[], float]:
    """The wall clock of now, going on steadily: setting it frees nobody and shuts nobody out."""
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()


def _share(peers: PeersSection) -> Share:
    return Share(
        messages_per_second=peers.messages_per_second,
        bytes_per_second=peers.bytes_per_second,
        verifier_seconds_per_second=peers.verifier_share,
        burst_seconds=peers.burst_seconds,
        newcomer_part=peers.newcomer_part,
        neighbourhood_shares=peers.neighbourhood_shares,
    )


def _settings(peers: PeersSection) -> ReputationSettings:
    return ReputationSettings(
        half_life_seconds=peers.half_life_seconds,
        ignore_below=peers.ignore_below,
        close_below=peers.close_below,
        ignore_seconds=peers.ignore_seconds,
        backoff_min_seconds=peers.backoff_min_seconds,
        backoff_max_seconds=peers.backoff_max_seconds,
        newcomer_groups=peers.newcomer_groups,
    )
