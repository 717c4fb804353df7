"""The node: builds the rooms and owns every task; `rooms` introduces them to each other.

Life of a node: lock the home, load identity, manifest and model; start network and workers; run the
loops until asked to stop or out of rounds; save a checkpoint; stop everything within the contract's 15
seconds, and what a slow disk needs for a large checkpoint. A worker that fails for good ends the node the
same way, with a non-zero exit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any

import uvloop

from swarmd.config import Config
from swarmd.config_renewal import Renewed
from swarmd.console import NodeConsole, has_screen
from swarmd.errors import ConfigError, SwarmdError
from swarmd.identity import Identity
from swarmd.loops.canary import Canary
from swarmd.loops.state import LoopState
from swarmd.loops.train import Round
from swarmd.models.placement import Placement
from swarmd.models.resolve import ModelFolder, resolve
from swarmd.monitor.control_server import ControlServer
from swarmd.monitor.history import History
from swarmd.monitor.log import set_log_level, set_up_log
from swarmd.monitor.loop_lag import LoopLag
from swarmd.monitor.metrics import MetricsServer, make_registry
from swarmd.monitor.processes import ProcessSizes
from swarmd.monitor.service_manager import ServiceManager
from swarmd.monitor.status import LastKnown, save_last_known
from swarmd.observe import Observer
from swarmd.paths import Home, lock_identity
from swarmd.processes import Processes
from swarmd.replay.samplers import load_rule
from swarmd.rooms import Rooms, replay_buffer
from swarmd.saving import CHECKPOINT_SECONDS, STOP_SECONDS, Saver
from swarmd.tasks.manifest import Manifest
from swarmd.terminal import has_terminal
from swarmd.training.messages import TrainerReady
from swarmd.workers.supervisor import WorkerEvent

if TYPE_CHECKING:
    from swarmd.network import Network

log = logging.getLogger("swarmd.node")

HASTE_SECONDS = 12.0
"""From being asked to stop, beside the disk's time for the last checkpoint. What hangs then is killed."""
SAYING_SECONDS = 1.0
"""Of these, what is left after a checkpoint that was not done in time."""
END_SECONDS = 15.0
"""The same, until the end of it all."""
LAST_KNOWN_SECONDS = 5.0


def run_node(
    config: Config, home: Home, placement: Placement, *, console: bool, reread: Callable[[], Config]
) -> int:
    """Run a node until it is done or asked to stop; its model is computed where `placement` says.

    Returns the exit code.

    `reread` reads the configuration again, from all its sources; it raises ConfigError.

    Raises SwarmdError, one line for a person, when the node cannot start or cannot go on.
    """
    home.prepare()
    with home.lock():
        model = resolve(config.model.name)
        manifest = Manifest.chosen(config.swarm.manifest, model.manifest_hint)
        identity = Identity.load_or_create(home.identity_key)
        set_up_log(
            home.log_file,
            level=config.monitor.log_level,
            max_bytes=config.monitor.log_bytes,
            json_lines=config.node.json_logs,
            to_stderr=console and not has_screen(console),
        )
        with lock_identity(identity.peer_id), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            node = Node(config, home, model, placement, manifest, identity, attended=console, reread=reread)
            runner.run(node.run())
    return 0


class Node:
    """One node. Its rooms are built here; what they do stands in the rooms and the loops."""

    def __init__(
        self,
        config: Config,
        home: Home,
        model: ModelFolder,
        placement: Placement,
        manifest: Manifest,
        identity: Identity,
        *,
        attended: bool,
        reread: Callable[[], Config],
    ) -> None:
        self._config = config
        self._reread = reread
        self._home = home
        self._manifest = manifest
        self._identity = identity
        self._model = model
        generation = config.generation
        self._state = LoopState(canary=Canary(generation.canary_every_versions, generation.canary_tolerance))
        self._stop = asyncio.Event()
        self._failure: SwarmdError | None = None
        self._haste_at: float | None = None
        self._rooms: Rooms | None = None
        self._processes = Processes(config, home, model, placement, manifest, self._state, self._note_worker)
        self._rule = load_rule(config.replay.sampler)
        self._buffer = replay_buffer(config)
        self._saver = Saver(self._processes.trainer, self._state, self._buffer, manifest)
        self._network: Network | None = None
        if not config.swarm.isolated:
            # A node that is alone needs none of hivemind.
            from swarmd.network import Network

            self._network = Network(config, home, identity, manifest, model.name, self._state)
        self._loop_lag = LoopLag()
        self._sizes = ProcessSizes(self._processes.names)
        self._history = History(home.history, max_rounds=config.monitor.history_rounds)
        self._observer = Observer(
            peer_id=identity.peer_id,
            name=config.node.name or identity.peer_id[-6:],
            config=config,
            model=model,
            placement=placement,
            manifest=manifest,
            loops=self._state,
            processes=self._processes,
            buffer=self._buffer,
            saver=self._saver,
            history=self._history,
            loop_lag=self._loop_lag,
            sizes=self._sizes,
            network=self._network,
        )
        self._console = NodeConsole(self._observer, home, attended=attended)
        self._service = ServiceManager()

    async def run(self) -> None:
        """Run until asked to stop or out of rounds. Raises SwarmdError when the node cannot go on."""
        self._listen_to_signals()
        async with contextlib.AsyncExitStack() as stack:
            # A trainer that had to be killed leaves its memory behind.
            stack.callback(self._processes.end_in_haste)
            await stack.enter_async_context(self._history)
            await stack.enter_async_context(
                ControlServer(
                    self._home.control_socket,
                    status=self._observer.status,
                    peers=self._observer.peers,
                    judge=self._judge_peer,
                    save=lambda: self._saver.save("as asked"),
                    stop=self._stop.set,
                )
            )
            if self._config.monitor.metrics_listen:
                await stack.enter_async_context(
                    MetricsServer(self._config.monitor.metrics_listen, make_registry(self._observer.status))
                )
            async with self._background():
                await self._until_stop(self._lead())
                # The plot is drawn while the workers stop.
                plot = asyncio.ensure_future(self._console.draw_plot(self._plot_seconds()))
            await self._console.say_end(await plot)
        if self._failure is not None:
            raise self._failure

    @contextlib.asynccontextmanager
    async def _background(self) -> AsyncIterator[None]:
        """What runs from start to end, whatever the loops do: workers, status on disk, loop lag."""
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._guard(worker.run()), name=worker.name)
                for worker in self._processes.workers
            ]
            tasks.append(group.create_task(self._console.run(), name="screen"))
            tasks.append(group.create_task(self._loop_lag.run(), name="loop lag"))
            tasks.append(group.create_task(self._sizes.run(), name="process sizes"))
            tasks.append(group.create_task(self._keep_last_known_fresh(), name="last known state"))
            tasks.append(group.create_task(self._service.keep_alive(), name="watchdog"))
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()

    async def _lead(self) -> None:
        """From the first start of the workers to the last round."""
        async with contextlib.AsyncExitStack() as stack:
            if self._network is not None:
                await stack.enter_async_context(self._network)
                log.info("listening on %s", ", ".join(self._network.transport.state.addresses))
            ready = await self._processes.wait_ready()
            rooms = self._rooms = self._resume(ready)
            self._observer.begin_training()
            self._service.ready()
            try:
                async with asyncio.TaskGroup() as group:
                    companions = [
                        group.create_task(work)
                        for work in rooms.companions(self._state, ready.tokenizer_fingerprint)
                    ]
                    await rooms.train_loop(self._note_round).run(self._state)
                    for task in companions:
                        task.cancel()
            finally:
                self._observer.state = "stopping"
                # While the network is still up: what is shown later is what there was at the end.
                self._keep_last_known()
                await self._saver.save_or_say("at the end", self._trainer_seconds())

    def _trainer_seconds(self) -> float:
        """How long the trainer may take for the last checkpoint, beside the disk's time."""
        if self._haste_at is None:
            # One that is through with its rounds has the time of any checkpoint.
            return CHECKPOINT_SECONDS
        # A step that was waited for has taken some of it; a moment is left to say so before the haste.
        left = self._haste_at - asyncio.get_running_loop().time() - self._saver.disk_seconds
        return max(1.0, min(STOP_SECONDS, left - SAYING_SECONDS))

    def _resume(self, ready: TrainerReady) -> Rooms:
        """Go on where the checkpoint stands, or begin. Returns the rooms, ready for their loops."""
        source = self._saver.resume(ready, self._identity.peer_id, self._config.node.seed)
        self._observer.notes += ready.notes
        if self._processes.verifier_ready:
            self._observer.notes += [
                f"scoring is less enclosed: no {layer}"
                for layer in self._processes.verifier_ready.missing_layers
            ]
        return Rooms(
            self._config,
            self._identity.peer_id,
            self._manifest,
            self._processes,
            self._buffer,
            source,
            self._network,
            self._rule,
        )

    async def _note_round(self, done: Round) -> None:
        """Book a round, and save a checkpoint when it is time."""
        record = self._observer.note_round(done)
        self._console.note_round(record)
        await self._history.append(record)
        every = self._config.schedule.checkpoint_every_rounds
        if every and done.number % every == 0 and not self._stop.is_set():
            await self._saver.save_or_say(f"after round {done.number}")

    def _judge_peer(self, peer_id: str, word: str) -> str:
        if self._network is None:
            raise SwarmdError("the node is isolated: it has no peers")
        return self._network.judge(peer_id, word)

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a part without which the node cannot go on: its error ends the node in order."""
        try:
            await work
        except SwarmdError as error:
            self._fail(error)

    def _fail(self, error: SwarmdError) -> None:
        if self._failure is None:
            self._failure = error
        self._stop.set()

    async def _until_stop(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` until it is done or the node is asked to stop."""
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
            if self._stop.is_set():
                disk_seconds = self._saver.disk_seconds
                self._service.stopping(END_SECONDS + disk_seconds)
                if disk_seconds > END_SECONDS:
                    log.info(
                        "asked to stop: the last checkpoint has up to %d s; a second signal ends at once, "
                        "with the older ones kept",
                        STOP_SECONDS + disk_seconds,
                    )
                self._haste_at = loop.time() + HASTE_SECONDS + disk_seconds
                loop.call_at(self._haste_at, self._processes.end_in_haste)
        finally:
            stop.cancel()
            task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            log.info("asked to stop")
        except SwarmdError as error:
            self._fail(error)
        except ExceptionGroup as errors:
            known, unknown = errors.split(SwarmdError)
            if unknown is not None or known is None:
                raise
            self._fail(_first(known))

    def _plot_seconds(self) -> float | None:
        """For the plot: half of what is left until haste. None when nobody asked for the end."""
        if self._haste_at is None:
            return None
        return max(1.0, (self._haste_at - asyncio.get_running_loop().time()) / 2)

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_stop_signal)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # As nohup has it.
            # From a terminal it says that the terminal is gone; a service is asked to reload.
            on_hangup = self._on_stop_signal if has_terminal() else self._reload
            loop.add_signal_handler(signal.SIGHUP, on_hangup)

    def _reload(self) -> None:
        """Read the configuration again and take over what can change while the node runs."""
        is_up = self._rooms is not None
        if is_up:
            self._service.reloading()
        try:
            renewed = Renewed.of(self._config, self._reread())
        except ConfigError as error:
            log.error("the configuration is not reloaded, and the old one stays: %s", error)
        else:
            self._take_over(renewed.config)
            log.info("configuration reloaded: %s", ", ".join(renewed.taken) or "nothing has changed")
            if renewed.left:
                log.warning("these need a restart: %s", ", ".join(renewed.left))
        if is_up:  # Else a manager would take a node that loads for one that has started.
            self._service.ready()

    def _take_over(self, config: Config) -> None:
        self._config = config
        set_log_level(config.monitor.log_level)
        self._history.max_rounds = config.monitor.history_rounds
        if self._network is not None:
            self._network.renew(config)
        if self._rooms is not None:
            self._rooms.renew(config)

    def _on_stop_signal(self) -> None:
        if self._stop.is_set():
            # The second signal: at once. The kernel ends p2pd with us.
            self._processes.end_in_haste()
            self._home.clear_runtime()
            print("swarmd: stopped at once, without waiting for a checkpoint", file=sys.stderr, flush=True)
            os._exit(1)
        self._stop.set()

    def _note_worker(self, event: WorkerEvent) -> None:
        level = logging.WARNING if event.kind == "failed" else logging.INFO
        log.log(level, "%s worker %s%s", event.worker, event.kind, f": {event.text}" if event.text else "")

    async def _keep_last_known_fresh(self) -> None:
        while True:
            await asyncio.sleep(LAST_KNOWN_SECONDS)
            self._keep_last_known()
            self._service.say(f"{self._observer.state}, round {self._state.round}")

    def _keep_last_known(self) -> None:
        try:
            save_last_known(
                self._home.status_file, LastKnown(self._observer.status(), self._observer.peers())
            )
        except OSError as error:
            log.warning("the last known state cannot be saved: %s", error.strerror or error)


def _first(errors: ExceptionGroup[SwarmdError]) -> SwarmdError:
    """The first of our own errors in a group; the rest follow from it or say the same."""
    inner: BaseException = errors
    while isinstance(inner, BaseExceptionGroup):
        inner = inner.exceptions[0]
    assert isinstance(inner, SwarmdError)
    return inner
