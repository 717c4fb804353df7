"""What the node shows of itself: the status and the peer list are put together here from the rooms,
and nowhere else.
"""

from __future__ import annotations

import math
import platform
import time
from collections import deque
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING

import msgspec
import psutil

from swarmd import __version__
from swarmd.config import Config
from swarmd.gossip.peers import PeerView
from swarmd.loops.state import LoopState
from swarmd.loops.train import Round
from swarmd.models.placement import Placement
from swarmd.models.resolve import ModelFolder
from swarmd.monitor.history import History, RoundRecord
from swarmd.monitor.loop_lag import LoopLag
from swarmd.monitor.processes import ProcessSizes
from swarmd.monitor.rates import RateMeter, Totals
from swarmd.monitor.status import (
    BootstrapStatus,
    BufferStatus,
    CanaryStatus,
    ClockStatus,
    NodeState,
    NodeStatus,
    PeerStatus,
    RewardStatus,
    TrainingStatus,
    WeightsStatus,
    WorkerStatus,
)
from swarmd.processes import Processes
from swarmd.replay.buffer import ReplayBuffer
from swarmd.saving import Saver
from swarmd.tasks.manifest import Manifest
from swarmd.workers.supervisor import Worker

if TYPE_CHECKING:
    from swarmd.network import Network

RECENT_ROUNDS = 200
_LIBRARIES = ("torch", "transformers", "hivemind", "reasoning-gym")


@dataclass
class Observer:
    """Reads the rooms. Keeps only what a rate or a sparkline needs."""

    peer_id: str
    name: str
    config: Config
    model: ModelFolder
    placement: Placement
    manifest: Manifest
    loops: LoopState
    processes: Processes
    buffer: ReplayBuffer
    saver: Saver
    history: History
    loop_lag: LoopLag
    sizes: ProcessSizes
    network: Network | None
    state: NodeState = "starting"
    last_round: Round | None = None
    notes: list[str] = field(default_factory=list)
    """What was said at the start and stays true: a GPU that does not work, a checkpoint passed over."""
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_ROUNDS))

    def __post_init__(self) -> None:
        self._started_at = time.monotonic()
        self._process = psutil.Process()
        self._versions = {"swarmd": __version__, "python": platform.python_version()} | {
            name: version(name) for name in _LIBRARIES
        }
        self._rates = RateMeter(self._totals())

    def begin_training(self) -> None:
        """The workers are ready: rates count from here."""
        self.state = "training"
        self._rates.restart(self._totals())
        self.loop_lag.restart()

    def note_round(self, done: Round) -> RoundRecord:
        """Take in a round that has just ended; returns its row for the history."""
        loops, metrics, batch = self.loops, done.metrics, done.batch
        self.last_round = done
        if loops.local_mean is not None:
            self._recent.append(loops.local_mean)
        rates = self._rates.note(self._totals())
        stats = self.buffer.stats()
        return RoundRecord(
            round=done.number,
            ended_at=time.time(),
            policy_version=loops.policy_version,
            own_reward=loops.local_mean,
            external_reward=loops.external_mean,
            eval_reward=loops.eval_reward,
            local_groups=len(batch.groups) - batch.external,
            external_groups=batch.external,
            filled_groups=batch.filled,
            groups_with_signal=metrics.groups_with_signal,
            peers=len(self._connected()),
            buffer_local=stats.local,
            buffer_external=stats.external,
            tokens=metrics.tokens,
            loss=metrics.loss,
            grad_norm=metrics.grad_norm,
            entropy=metrics.entropy,
            mean_ratio=metrics.mean_ratio,
            clipped_share=metrics.clipped_share,
            kl=metrics.kl,
            sampler_kl=metrics.sampler_kl,
            sampler_gap=metrics.sampler_gap,
            effective_share=metrics.effective_share,
            dropped_share=metrics.dropped_share,
            lag_groups=metrics.lag_groups,
            learning_rate=metrics.learning_rate,
            updates=metrics.updates,
            skipped_updates=metrics.skipped_updates,
            step_seconds=done.step_seconds,
            wait_seconds=done.wait_seconds,
            trainer_idle_share=rates.idle_shares["trainer"],
            generator_idle_share=rates.idle_shares["generator"],
            loop_lag_max_ms=self.loop_lag.take_recent_ms(),
            resident_bytes=self._process.memory_info().rss,
        )

    def status(self) -> NodeStatus:
        """The node now."""
        loops, stats = self.loops, self.buffer.stats()
        rates = self._rates.recent(self._totals())
        return NodeStatus(
            peer_id=self.peer_id,
            name=self.name,
            swarm=self.manifest.name,
            swarm_id=self.manifest.swarm_id,
            model=self.model.name,
            state=self._state(),
            round=loops.round,
            rounds=self.config.node.rounds,
            policy_version=loops.policy_version,
            uptime_seconds=time.monotonic() - self._started_at,
            addresses=self.network.transport.state.addresses if self.network else (),
            is_isolated=self.network is None,
            dht_requests=dict(self.network.transport.state.dht_requests) if self.network else {},
            peers=len(self._connected()),
            bootstrap=self._bootstrap(),
            clock=self._clock(),
            reward=RewardStatus(
                local_mean=loops.local_mean,
                external_mean=loops.external_mean,
                eval=loops.eval_reward,
                recent=tuple(self._recent),
            ),
            buffer=BufferStatus(
                local=stats.local,
                external=stats.external,
                bytes=stats.bytes,
                rejected=self._rejected(stats.dropped),
                sampler=self.config.replay.sampler,
                external_wanted=loops.external_wanted,
            ),
            workers={
                worker.name: self._worker(worker, rates.idle_shares[worker.name])
                for worker in self.processes.workers
            },
            training=self._training(),
            weights=self._weights(),
            canary=self._canary(),
            rounds_per_minute=rates.rounds_per_minute,
            groups_per_minute=rates.groups_per_minute,
            tokens_per_second=rates.tokens_per_second,
            trained_groups=loops.trained_groups,
            external_groups=loops.external_used,
            filled=loops.filled,
            unpublished=self._unpublished(),
            loop_lag_max_ms=self.loop_lag.max_ms,
            resident_bytes=self._process.memory_info().rss,
            processes=self.sizes.latest,
            waiting_for=self._waiting_for(),
            sandbox=ready.sandbox_layers if (ready := self.processes.verifier_ready) else (),
            problems=self._problems(),
            versions=self._versions,
        )

    def peers(self) -> tuple[PeerStatus, ...]:
        """What is known about peers now."""
        if self.network is None:
            return ()
        return tuple(map(_peer_status, self.network.peers.views(self._connected())))

    def _worker(self, worker: Worker, idle_share: float) -> WorkerStatus:
        place = {"trainer": self.placement.trainer, "generator": self.placement.generator}.get(worker.name)
        ready, why = self.processes.generator_ready, place.why if place else ""
        if worker.name == "generator" and ready is not None:
            why = "; ".join(part for part in (why, ready.note) if part)
        return WorkerStatus(
            pid=worker.pid,
            state=worker.state,
            restarts=worker.restarts,
            doing="" if worker.state == "ready" else worker.progress,
            device=place.device if place else "",
            dtype=place.dtype if place else "",
            why=why,
            idle_share=None if self.state == "starting" else idle_share,
            estimated_bytes=place.needs_bytes if place else 0,
        )

    def _connected(self) -> tuple[str, ...]:
        return tuple(self.network.transport.state.connected) if self.network else ()

    def _state(self) -> NodeState:
        if self.state == "training" and "train" in self.loops.waiting and self._starved():
            return "waiting"
        return self.state

    def _starved(self) -> bool:
        """Whether nothing is under way that would end the trainer's wait: no sampling either."""
        sampling = self.loops.in_flight or "rollout" not in self.loops.waiting
        return not sampling or bool(self.loops.problems)

    def _waiting_for(self) -> str:
        if self.state == "starting":
            busy = [w for w in self.processes.workers if w.state != "ready"]
            return ", ".join(f"{w.name}: {w.progress or w.state}" for w in busy)
        waiting = self.loops.waiting
        if "train" in waiting:
            return f"trainer waits for {waiting['train']}"
        if "rollout" in waiting:
            return f"sampling waits for {waiting['rollout']}"
        return ""

    def _totals(self) -> Totals:
        loops = self.loops
        return Totals(
            time.monotonic(),
            loops.round,
            loops.trained_groups,
            loops.generated_tokens,
            {worker.name: worker.occupancy.busy_seconds for worker in self.processes.workers},
        )

    def _training(self) -> TrainingStatus:
        done = self.last_round
        if done is None:
            return TrainingStatus()
        metrics = done.metrics
        return TrainingStatus(
            loss=metrics.loss,
            grad_norm=metrics.grad_norm,
            entropy=metrics.entropy,
            mean_ratio=metrics.mean_ratio,
            clipped_share=metrics.clipped_share,
            kl=metrics.kl,
            sampler_kl=metrics.sampler_kl,
            sampler_gap=metrics.sampler_gap,
            effective_share=metrics.effective_share,
            dropped_share=metrics.dropped_share,
            lag_groups=metrics.lag_groups,
            learning_rate=metrics.learning_rate,
            step_seconds=done.step_seconds,
            skipped_steps=metrics.total_skipped_updates,
            tokens_at_once=metrics.tokens_at_once,
        )

    def _memory_problem(self) -> str:
        tokens = self.last_round.metrics.tokens_at_once if self.last_round else 0
        if not 0 < tokens < self.placement.tokens_at_once:
            return ""
        return (
            f"the trainer ran out of memory: it goes on with {tokens} tokens at once instead of "
            f"{self.placement.tokens_at_once}, and tries more later"
        )

    def _weights(self) -> WeightsStatus:
        ready = self.processes.trainer_ready
        if ready is None:
            return WeightsStatus()
        return WeightsStatus(
            channel=ready.handle.kind,
            reason=ready.channel_reason,
            served_version=self.loops.served_version,
        )

    def _canary(self) -> CanaryStatus:
        canary = self.loops.canary
        check = canary.last
        if not canary.every_versions or check is None:
            return CanaryStatus(state="waiting" if canary.every_versions else "off")
        return CanaryStatus(
            state="good" if check.is_good else "bad",
            version=check.version,
            difference=check.difference if math.isfinite(check.difference) else None,
            tolerance=check.tolerance,
            checked_at=check.checked_at,
            failures=canary.total_failures,
        )

    def _rejected(self, dropped: dict[str, int]) -> dict[str, int]:
        """Refusals of messages and of the buffer together; what peers sent twice is in both, once here."""
        rejected = dict(self.network.peers.rejected) if self.network else {}
        rejected |= self.loops.refused
        for reason, count in dropped.items():
            rejected[reason] = max(rejected.get(reason, 0), count)
        if self.network and self.network.subscriber.dropped:
            rejected["queue_full"] = self.network.subscriber.dropped
        return rejected

    def _unpublished(self) -> dict[str, int]:
        counts = dict(self.loops.unpublished)
        if self.network and self.network.not_sent:
            counts["network_down"] = self.network.not_sent
        return counts

    def _bootstrap(self) -> tuple[BootstrapStatus, ...]:
        if self.network is None:
            return ()
        return tuple(
            BootstrapStatus(
                address=address.address,
                is_reachable=address.reachable,
                last_error=address.last_error,
                seconds=max(0.0, time.monotonic() - address.since),
            )
            for address in self.network.transport.state.bootstrap
        )

    def _clock(self) -> ClockStatus:
        if self.network is None:
            return ClockStatus()
        skew = self.network.clock_skew
        return ClockStatus(skew_seconds=skew.seconds(), peers=skew.peers)

    def _problems(self) -> tuple[str, ...]:
        problems = [
            *self.placement.warnings,
            *self.notes,
            *self.loops.problems.values(),
            self._memory_problem(),
            self.saver.problem,
            self.history.problem,
        ]
        if self.network is not None:
            transport = self.network.transport.state
            problems += transport.notes
            problems.append(self.network.clock_skew.problem())
            if not transport.up:
                problems.append("p2pd is being restarted")
            if transport.bootstrap and not transport.connected:
                problems.append("0 peers, retrying: training alone meanwhile")
            problems += [
                f"cannot reach {address.address}: {address.last_error}"
                for address in transport.bootstrap
                if not address.reachable and address.last_error
            ]
        return tuple(dict.fromkeys(problem for problem in problems if problem))


def _peer_status(view: PeerView) -> PeerStatus:
    status = PeerStatus(
        peer_id=view.peer_id,
        name=view.name,
        model=view.model,
        round=view.round,
        addresses=view.addresses,
        accepted=view.accepted,
        rejected=view.rejected,
        screened=view.screened,
        last_seen_seconds=view.last_seen_seconds,
    )
    if view.reputation is None:
        return status
    return msgspec.structs.replace(status, **msgspec.structs.asdict(view.reputation))
