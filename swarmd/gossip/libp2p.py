"""The transport on libp2p: hivemind's p2pd, supervised.

Promises: p2pd dies with us and comes back under the same peer id when it dies, with subscriptions,
request handlers and records restored; when it does not come up again for long, that is an error.
Join addresses are dialled each on its own, for ever. Peers of earlier runs and of records are dialled
when connections are few.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

from swarmd.errors import NetworkError
from swarmd.gossip import libp2p_streams
from swarmd.gossip.background import Background
from swarmd.gossip.dialer import Backoff, JoinAddresses, try_port
from swarmd.gossip.known_peers import KnownPeers
from swarmd.gossip.libp2p_bindings import Multiaddr, P2PDaemonError
from swarmd.gossip.libp2p_daemon import DaemonSettings, P2PDaemon, one_line
from swarmd.gossip.libp2p_dht import Asked
from swarmd.gossip.libp2p_life import Life
from swarmd.gossip.libp2p_records import Records
from swarmd.gossip.libp2p_settings import Libp2pSettings
from swarmd.gossip.listen import ListenPorts, is_loopback
from swarmd.gossip.subscription import Subscription
from swarmd.gossip.transport import (
    EQUAL_STANDING,
    KnownPeer,
    RecordCheck,
    RequestError,
    RequestHandler,
    Standing,
    TransportDownError,
    TransportState,
    check_message_size,
    check_record_size,
)

__all__ = ["Libp2pSettings", "Libp2pTransport"]

log = logging.getLogger(__name__)

_WATCH_SECONDS = 1.0
_WATCH_CLOSED_SECONDS = 0.25
"""While a peer that is closed keeps coming back: p2pd has no gate, so it is put out again and again."""
_MEET_AGAIN_SECONDS = 3.0
_RESUBSCRIBE_SECONDS = 0.2
_LOOK_TIMEOUT_SECONDS = 3.0
_UNANSWERED_CHECKS = 3
_RESTART = Backoff(min_seconds=0.2, max_seconds=30.0)


class Libp2pTransport:
    """The transport of a real node; see `Transport` for what the methods promise.

    Args:
        settings: how to be on the network.
        record_check: whether this node holds a record for others.
        standing: asked whom to connect with, and whose records to hold first.
    """

    def __init__(
        self,
        settings: Libp2pSettings,
        record_check: RecordCheck,
        standing: Standing = EQUAL_STANDING,
    ) -> None:
        self._settings = settings
        self._record_check = record_check
        self._standing = standing
        self._subscriptions: dict[str, Subscription] = {}
        self._handlers: dict[str, RequestHandler] = {}
        self._joining = JoinAddresses(settings.peer_id, self._dial, self._is_connected, settings.redial)
        self._joining.replace(settings.join)
        self._known = KnownPeers(settings.peer_id, settings.redial, standing.is_known)
        self._ports = ListenPorts()
        self._life: Life | None = None
        self._up = asyncio.Event()
        """Set once the p2pd that runs now, or ran last, was set up."""
        self._restarts = 0
        self._asked = Asked()
        self._connected: Mapping[str, tuple[str, ...]] = {}
        self._addresses: tuple[str, ...] = ()
        self._exit = contextlib.AsyncExitStack()

    @property
    def peer_id(self) -> str:
        """This node's peer id."""
        return self._settings.peer_id

    @property
    def p2pd_pid(self) -> int | None:
        """Process id of the running p2pd, None while there is none."""
        return None if self._life is None else self._life.daemon.pid

    @property
    def state(self) -> TransportState:
        """Addresses, connections and join addresses, as last seen."""
        notes = list(self._ports.notes)
        if self._joining.has_itself:
            notes.append("a join address names this node itself: it is not dialled")
        if self._addresses and all(map(is_loopback, self._addresses)):
            notes.append("only loopback addresses are announced: peers on other machines cannot connect")
        return TransportState(
            up=self._life is not None,
            addresses=self._addresses,
            connected=self._connected,
            bootstrap=self._joining.statuses,
            restarts=self._restarts,
            notes=tuple(notes),
            dht_requests=dict(self._asked.outcomes),
        )

    async def __aenter__(self) -> Self:
        """Start p2pd. Raises NetworkError when it does not start."""
        async with contextlib.AsyncExitStack() as stack:
            self._ports = stack.enter_context(ListenPorts.take(self._settings.listen))
            daemon = await self._first_daemon()
            stack.callback(self._close_subscriptions)
            await stack.enter_async_context(Background(self._supervise(daemon), "p2pd supervision"))
            try:
                async with asyncio.timeout(self._settings.startup_timeout_seconds):
                    await self._up.wait()
            except TimeoutError as error:
                raise NetworkError(
                    f"setting up p2pd took more than {self._settings.startup_timeout_seconds:g} s; "
                    f"its last line: {daemon.last_line}"
                ) from error
            self._exit = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop p2pd, end subscriptions, give the ports back."""
        await self._exit.__aexit__(kind, error, trace)

    def join(self, addresses: Iterable[str]) -> None:
        """Keep these join addresses connected, and no others, from now on. Connections stay as they are."""
        self._joining.replace(addresses)

    async def publish(self, topic: str, data: bytes) -> None:
        """Hand a message to GossipSub."""
        check_message_size(data)
        await self._living().daemon.publish(topic, data)

    def subscribe(self, subscription: Subscription) -> Subscription:
        """Receive its topic from now on."""
        if subscription.topic in self._subscriptions:
            raise ValueError(f"topic {subscription.topic!r} has a subscription already")
        self._subscriptions[subscription.topic] = subscription
        if self._life is not None:
            self._life.spawn(self._pump(self._life.daemon, subscription))
        return subscription

    async def put_record(self, key: str, value: bytes, ttl_seconds: float) -> bool:
        """Store our record under `key` in the DHT."""
        check_record_size(value)
        return await self._living().records.put(key, value, ttl_seconds)

    async def get_records(self, key: str, timeout_seconds: float = 10.0) -> Mapping[str, bytes]:
        """Unexpired records under `key`, by their owners' peer ids."""
        return await self._living().records.get(key, timeout_seconds)

    def serve(self, protocol: str, handler: RequestHandler) -> None:
        """Answer requests of a protocol from now on."""
        if protocol in self._handlers:
            raise ValueError(f"protocol {protocol!r} is served already")
        self._handlers[protocol] = handler
        if self._life is not None:
            self._life.spawn(self._serve(self._life, protocol, handler))

    async def request(self, peer_id: str, protocol: str, data: bytes, timeout_seconds: float) -> bytes:
        """Ask one peer over a stream of its own."""
        return await libp2p_streams.request(self._living().daemon, peer_id, protocol, data, timeout_seconds)

    def add_known_peers(self, peers: Iterable[KnownPeer]) -> None:
        """Peers to dial when there are few connections."""
        self._known.add(peers)

    def _living(self) -> Life:
        if self._life is None:
            raise TransportDownError("p2pd is being restarted")
        return self._life

    def _is_connected(self, peer_id: str) -> bool:
        return peer_id in self._connected

    def _close_subscriptions(self) -> None:
        for subscription in self._subscriptions.values():
            subscription.close()

    async def _first_daemon(self) -> P2PDaemon:
        """Start p2pd; one that dies at once gets a second chance, one that hangs does not."""
        began = time.monotonic()
        try:
            return await self._start_daemon()
        except NetworkError as error:
            if time.monotonic() - began > self._settings.startup_timeout_seconds / 2:
                raise
            log.warning("p2pd did not start: %s; trying again", error)
            return await self._start_daemon()

    async def _start_daemon(self) -> P2PDaemon:
        settings = DaemonSettings(
            self._settings.identity_path,
            self._settings.runtime_folder,
            self._settings.startup_timeout_seconds,
        )
        daemon = await P2PDaemon.start(settings, self._ports.addresses)
        if str(daemon.peer_id) != self._settings.peer_id:
            await daemon.stop()
            raise NetworkError(
                f"p2pd came up as {daemon.peer_id}, but the identity is {self._settings.peer_id}"
            )
        return daemon

    async def _supervise(self, daemon: P2PDaemon) -> None:
        """Live through one p2pd after the other, until cancelled. Raises NetworkError when it is given up."""
        rng = random.Random()
        failures = failed_starts = 0
        down_since = time.monotonic()
        while True:
            started = time.monotonic()
            self._up.clear()
            try:
                await self._live(daemon)
            finally:
                self._life = None
                await daemon.stop()
            self._connected = {}
            self._restarts += 1
            lived_long = time.monotonic() - started > _RESTART.max_seconds
            failures = 1 if lived_long else failures + 1
            if self._up.is_set():
                failed_starts, down_since = 0, time.monotonic()
            else:
                failed_starts += 1
            problem = f"p2pd ended ({daemon.epitaph})"
            log.warning("%s; starting it again", problem)
            while True:
                self._give_up_after(failed_starts, time.monotonic() - down_since, problem)
                await asyncio.sleep(_RESTART.pause(failures, rng))
                try:
                    daemon = await self._start_daemon()
                except NetworkError as error:
                    failures, failed_starts = failures + 1, failed_starts + 1
                    problem = f"p2pd did not start: {error}"
                    log.warning("%s", problem)
                else:
                    break

    def _give_up_after(self, failed_starts: int, seconds: float, problem: str) -> None:
        settings = self._settings
        if failed_starts >= settings.max_failed_starts and seconds > settings.failed_starts_seconds:
            raise NetworkError(
                f"p2pd has not come up for {seconds:.0f} s and {failed_starts} starts: {problem}"
            )

    async def _live(self, daemon: P2PDaemon) -> None:
        """Everything that belongs to one p2pd. Returns when it is dead."""
        async with asyncio.TaskGroup() as group:
            life = Life(daemon, group)
            setting_up = life.spawn(self._set_up(life))
            try:
                await daemon.wait_dead()
            finally:
                self._life = None
                self._joining.rest()
                setting_up.cancel()
                life.end()

    async def _set_up(self, life: Life) -> None:
        """Restore on a new p2pd what peers and rooms know us by. A p2pd that fails here is ended."""
        try:
            life.records = await Records.create(life.daemon, self._record_check, self._standing, self._asked)
            await self._look(life.daemon)
            for protocol, handler in self._handlers.items():
                await libp2p_streams.serve(life.daemon, protocol, handler, self._standing.is_closed)
        except (NetworkError, OSError, EOFError, P2PDaemonError) as error:
            log.warning("p2pd could not be set up (%s); ending it", one_line(str(error)))
            life.daemon.kill()
            return
        for subscription in self._subscriptions.values():
            life.spawn(self._pump(life.daemon, subscription))
        life.spawn(self._watch(life))
        self._life = life
        self._joining.dial(life.spawn)
        self._up.set()

    async def _serve(self, life: Life, protocol: str, handler: RequestHandler) -> None:
        try:
            await libp2p_streams.serve(life.daemon, protocol, handler, self._standing.is_closed)
        except (NetworkError, OSError, EOFError, P2PDaemonError) as error:
            log.warning("p2pd refused protocol %s (%s); ending it", protocol, one_line(str(error)))
            life.daemon.kill()

    async def _pump(self, daemon: P2PDaemon, subscription: Subscription) -> None:
        """Move messages from p2pd to a subscription."""
        while True:
            with contextlib.suppress(NetworkError):
                async with contextlib.aclosing(daemon.subscription(subscription.topic)) as messages:
                    async for received in messages:
                        if received.source != self.peer_id:
                            subscription.push(received)
            await asyncio.sleep(_RESUBSCRIBE_SECONDS)

    async def _watch(self, life: Life) -> None:
        """Keep the snapshot fresh, meet new peers in the DHT, dial known ones, kill a deaf p2pd."""
        unanswered = 0
        closed: list[str] = []
        while True:
            await asyncio.sleep(_WATCH_CLOSED_SECONDS if closed else _WATCH_SECONDS)
            try:
                closed = await self._look(life.daemon)
            except NetworkError as error:
                unanswered += 1
                if unanswered >= _UNANSWERED_CHECKS:
                    log.warning("p2pd does not answer (%s); ending it", error)
                    life.daemon.kill()
                continue
            unanswered = 0
            for peer_id in closed:
                life.spawn(self._disconnect(life.daemon, peer_id))
            now = time.monotonic()
            life.records.tidy()
            for peer_id in life.records.unmet(self._connected):
                if life.meet_after.get(peer_id, 0.0) <= now:
                    life.meet_after[peer_id] = now + _MEET_AGAIN_SECONDS
                    life.spawn(life.records.meet(peer_id))
            life.meet_after = {
                peer: when for peer, when in life.meet_after.items() if peer in self._connected
            }
            for peer in self._worth_dialling(now):
                life.spawn(self._dial_known(peer))

    def _worth_dialling(self, now: float) -> list[KnownPeer]:
        """Known peers, while there are few connections; those in good standing also while all connections
        are with strangers, who may be one person.
        """
        enough, connected = self._settings.enough_peers, self._connected
        due = self._known.take_due(enough - len(connected), connected, now)
        wanted = enough // 2 - sum(map(self._standing.is_known, connected)) - len(due)
        return due + self._known.take_due(wanted, connected, now, in_good_standing=True)

    async def _look(self, daemon: P2PDaemon) -> list[str]:
        """Refresh what the snapshot shows. Returns who is connected and should not be: not shown."""
        try:
            async with asyncio.timeout(_LOOK_TIMEOUT_SECONDS):
                connected = await daemon.connected()
                _, self._addresses = await daemon.identify()
        except TimeoutError as error:
            raise RequestError(f"p2pd did not answer in {_LOOK_TIMEOUT_SECONDS:g} s") from error
        closed = [peer_id for peer_id in connected if self._standing.is_closed(peer_id)]
        self._connected = {peer_id: where for peer_id, where in connected.items() if peer_id not in closed}
        return closed

    async def _disconnect(self, daemon: P2PDaemon, peer_id: str) -> None:
        try:
            await daemon.disconnect(peer_id)
        except NetworkError as error:
            # It may have gone by itself; one that is still there is tried again in a second.
            log.debug("closing the connection with %s: %s", peer_id, error)

    async def _dial(self, peer_id: str, address: str) -> None:
        """Connect to a peer at one address, which may come from a stranger. Raises NetworkError."""
        if self._standing.is_closed(peer_id):
            raise RequestError("this node has closed itself to that peer: see `swarmd peers`")
        bare = address.removesuffix("/").removesuffix(f"/p2p/{peer_id}")
        try:
            Multiaddr(bare)
            await try_port(f"{bare}/p2p/{peer_id}")
            daemon = self._living().daemon
            await daemon.connect(peer_id, [bare], self._settings.startup_timeout_seconds)
        except ValueError as error:
            raise RequestError(f"not an address that can be dialled: {one_line(str(error))}") from error
        await self._look(daemon)

    async def _dial_known(self, peer: KnownPeer) -> None:
        for address in peer.addresses:
            try:
                await self._dial(peer.peer_id, address)
            except NetworkError as error:
                log.debug("known peer %s at %s: %s", peer.peer_id, address, error)
            else:
                return
