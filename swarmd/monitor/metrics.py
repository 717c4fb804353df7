"""Prometheus metrics. Every metric is named here and computed from the node's status at the moment
of the scrape: there is no second set of books. Served over HTTP where the config asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from swarmd.errors import NetworkError
from swarmd.monitor.status import CanaryStatus, NodeStatus

PREFIX = "swarmd"


class NodeCollector(Collector):
    """Turns a node's status into metrics."""

    def __init__(self, status: Callable[[], NodeStatus]) -> None:
        self._status = status

    def describe(self) -> list[Metric]:
        """Nothing: a status may not exist yet when the collector is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All metrics of the node, now."""
        status = self._status()
        yield InfoMetricFamily(
            f"{PREFIX}_node",
            "Who this is.",
            {"peer_id": status.peer_id, "name": status.name, "swarm": status.swarm, "model": status.model},
        )
        yield from _gauges(status)
        yield from _counters(status)
        yield from _workers(status)
        yield from _processes(status)


def make_registry(status: Callable[[], NodeStatus]) -> CollectorRegistry:
    """A registry of its own with the node's metrics in it."""
    registry = CollectorRegistry()
    registry.register(NodeCollector(status))
    return registry


class MetricsServer:
    """Serves GET /metrics on HOST:PORT for as long as its block lasts."""

    def __init__(self, listen: str, registry: CollectorRegistry) -> None:
        self._listen = listen
        self._registry = registry
        application = web.Application()
        application.router.add_get("/metrics", self._answer)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)

    async def __aenter__(self) -> MetricsServer:
        """Open the port. Raises NetworkError when it is taken."""
        host, _, port = self._listen.rpartition(":")
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host.strip("[]"), int(port)).start()
        except OSError as error:
            await self._runner.cleanup()
            raise NetworkError(
                f"metrics cannot be served on {self._listen} ({error.strerror or error}): "
                f"choose another monitor.metrics_listen"
            ) from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the port."""
        await self._runner.cleanup()

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._runner.addresses[0][1])

    async def _answer(self, request: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )


def _gauges(status: NodeStatus) -> Iterator[Metric]:
    reward, training, buffer, canary = status.reward, status.training, status.buffer, status.canary
    rows: list[tuple[str, str, float | None]] = [
        ("round", "Training rounds done.", status.round),
        ("policy_version", "Version of the policy.", status.policy_version),
        ("uptime_seconds", "Since the node started.", status.uptime_seconds),
        ("peers", "Peers connected.", status.peers),
        ("problems", "What a person should see to; `swarmd status` has the lines.", len(status.problems)),
        ("clock_skew_seconds", "This clock ahead of the peers' (behind: < 0).", status.clock.skew_seconds),
        ("reward_own", "Mean reward of own, unfiltered rollouts of the last round.", reward.local_mean),
        ("reward_external", "Mean reward of peers' groups of the last round.", reward.external_mean),
        ("reward_eval", "Mean reward on the held-out tasks.", reward.eval),
        ("buffer_local_groups", "Own groups that wait for the trainer.", buffer.local),
        ("buffer_external_groups", "Peers' groups held.", buffer.external),
        ("external_wanted_groups", "Peers' groups wanted in a batch (J).", buffer.external_wanted),
        ("buffer_bytes", "Bytes held in the replay buffer.", buffer.bytes),
        ("loss", "Loss of the last optimizer step.", training.loss),
        ("grad_norm", "Gradient norm before clipping.", training.grad_norm),
        ("entropy_nats", "Entropy a token of own samples.", training.entropy),
        ("ratio_mean", "Mean probability ratio of own tokens.", training.mean_ratio),
        ("clipped_share", "Part of the tokens that the clip acted on.", training.clipped_share),
        ("kl_nats", "KL a token to the start weights.", training.kl),
        ("sampler_kl_nats", "KL a token from what sampled own groups to the trainer.", training.sampler_kl),
        ("sampler_gap_nats", "Generator to trainer, at the same version, a token.", training.sampler_gap),
        ("effective_share", "Effective sample size of own tokens, over all.", training.effective_share),
        ("dropped_share", "Part of peers' tokens that was taken out.", training.dropped_share),
        ("learning_rate", "Of the next optimizer step.", training.learning_rate),
        ("step_seconds", "Duration of the last training step.", training.step_seconds),
        ("tokens_at_once", "In one forward; fewer while memory is short.", training.tokens_at_once),
        ("canary_good", "1 when generator and trainer agreed at the last comparison.", _is_good(canary)),
        ("canary_version", "Policy version of the last comparison.", canary.version),
        ("canary_difference_nats", "Between generator and trainer, then.", canary.difference),
        ("canary_tolerance_nats", "Difference that is tolerated.", canary.tolerance),
        ("rounds_per_minute", "Rounds a minute, lately.", status.rounds_per_minute),
        ("groups_per_minute", "Groups trained on a minute, lately.", status.groups_per_minute),
        ("tokens_per_second", "Tokens sampled a second, lately.", status.tokens_per_second),
        ("external_share", "Part of the trained groups that came from peers.", status.external_share),
        ("loop_lag_max_seconds", "Longest block of the event loop.", status.loop_lag_max_ms / 1000),
        ("resident_bytes", "Memory of the daemon without its workers.", status.resident_bytes),
    ]
    for name, text, value in rows:
        if value is not None:
            yield GaugeMetricFamily(f"{PREFIX}_{name}", text, value)
    lags = GaugeMetricFamily(
        f"{PREFIX}_lag_groups", "Own groups of the last step, by versions of lag.", labels=["lag"]
    )
    for lag, count in enumerate(training.lag_groups):
        lags.add_metric([str(lag)], count)
    yield lags


def _is_good(canary: CanaryStatus) -> float | None:
    return None if canary.version is None else float(canary.state == "good")


def _counters(status: NodeStatus) -> Iterator[Metric]:
    totals = [
        ("trained_groups", "Groups trained on.", status.trained_groups),
        ("external_groups", "Peers' groups trained on.", status.external_groups),
        ("filled_groups", "Own groups that stood in for external ones.", status.filled),
        ("canary_failures", "Comparisons of generator and trainer that failed.", status.canary.failures),
        ("skipped_steps", "Optimizer steps left out as not finite.", status.training.skipped_steps),
    ]
    for name, text, total in totals:
        yield CounterMetricFamily(f"{PREFIX}_{name}", text, total)
    labelled = [
        ("rejected_groups", "Groups refused or left undrawn.", "reason", status.buffer.rejected),
        ("unpublished_groups", "Own groups that were not published.", "reason", status.unpublished),
        ("dht_requests", "Requests to other nodes' part of the DHT.", "outcome", status.dht_requests),
    ]
    for name, text, label, counts in labelled:
        family = CounterMetricFamily(f"{PREFIX}_{name}", text, labels=[label])
        for value, count in counts.items():
            family.add_metric([value], count)
        yield family


def _workers(status: NodeStatus) -> Iterator[Metric]:
    ready = GaugeMetricFamily(f"{PREFIX}_worker_ready", "1 when the worker is ready.", labels=["worker"])
    idle = GaugeMetricFamily(
        f"{PREFIX}_worker_idle_share", "Part of the last minute it waited for work.", labels=["worker"]
    )
    restarts = CounterMetricFamily(f"{PREFIX}_worker_restarts", "Times started again.", labels=["worker"])
    for name, worker in status.workers.items():
        ready.add_metric([name], float(worker.state == "ready"))
        if worker.idle_share is not None:
            idle.add_metric([name], worker.idle_share)
        restarts.add_metric([name], worker.restarts)
    yield from (ready, idle, restarts)


def _processes(status: NodeStatus) -> Iterator[Metric]:
    resident = GaugeMetricFamily(
        f"{PREFIX}_process_resident_bytes", "Memory of each process.", labels=["process"]
    )
    files = GaugeMetricFamily(
        f"{PREFIX}_process_open_files", "File descriptors of each process.", labels=["process"]
    )
    threads = GaugeMetricFamily(f"{PREFIX}_process_threads", "Threads of each process.", labels=["process"])
    for process in status.processes:
        resident.add_metric([process.name], process.resident_bytes)
        threads.add_metric([process.name], process.threads)
        if process.open_files is not None:
            files.add_metric([process.name], process.open_files)
    yield from (resident, files, threads)
