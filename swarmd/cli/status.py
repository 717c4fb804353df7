"""`swarmd status`: what a node does now, or its last known state once it does not run."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Annotated

import msgspec
import typer

from swarmd.cli.columns import columns, counts, printable, span
from swarmd.cli.options import HomeOption, JsonOption, chosen_home
from swarmd.errors import SwarmdError
from swarmd.models.fit import gigabytes
from swarmd.monitor.control import current_or_last_known
from swarmd.monitor.status import CanaryStatus, NodeStatus, TrainingStatus
from swarmd.paths import Home

__all__ = ["describe", "status"]


class Required(StrEnum):
    """What a health check asks of a node."""

    RUNNING = "running"
    TRAINING = "training"


def status(
    home: HomeOption = None,
    as_json: JsonOption = False,
    required: Annotated[
        Required | None,
        typer.Option(
            "--require", help="Exit with 1 unless the node answers (running) or trains.", show_default=False
        ),
    ] = None,
) -> None:
    """Show what a node does, or its last known state."""
    chosen = chosen_home(home)
    known = current_or_last_known(chosen)
    if required is not None:
        _require(required, known.status.state if known else "stopped", chosen)
    if as_json:
        never_ran = NodeStatus(peer_id="", swarm="", swarm_id="", model="", state="stopped")
        typer.echo(msgspec.json.encode(known.status if known else never_ran).decode())
    elif known is None:
        typer.echo(f"stopped: no node has run in {chosen.folder}")
    else:
        typer.echo(describe(known.status))


def _require(required: Required, state: str, home: Home) -> None:
    if state == "stopped" or (required == Required.TRAINING and state != "training"):
        raise SwarmdError(f"the node of {home.folder} is not {required}: it is {state}")


def describe(status: NodeStatus) -> str:
    """The status as lines for a person."""
    state = ", ".join(filter(None, (status.state, status.waiting_for)))
    of_rounds = f" of {status.rounds}" if status.rounds else ""
    rows = [
        ("node", f"{status.peer_id} {status.name}".strip()),
        ("swarm", f"{status.swarm} ({status.swarm_id[:16]})"),
        ("model", status.model),
        ("state", state),
        ("round", f"{status.round}{of_rounds}, {status.rounds_per_minute:.1f} a minute"),
        ("groups", f"{status.trained_groups} trained on, {status.groups_per_minute:.0f} a minute"),
        ("policy version", str(status.policy_version)),
        ("weights", _weights(status)),
        ("reward", _rewards(status)),
        ("buffer", f"{status.buffer.local} own, {status.buffer.external} external groups"),
        ("off-policy", _off_policy(status.training)),
        ("canary", _canary(status.canary)),
        ("external share", f"{status.external_share:.0%} of the groups trained on"),
        ("peers", "isolated" if status.is_isolated else str(status.peers)),
        ("dht requests", counts(status.dht_requests) if status.dht_requests else "none yet"),
        ("clock", _clock(status)),
        ("up", span(status.uptime_seconds)),
    ]
    rows += [("address", address) for address in status.addresses]
    for entry in status.bootstrap:
        failed = f"not reachable ({entry.last_error or 'not dialled yet'})"
        seen = "reachable" if entry.is_reachable else failed
        rows.append(("bootstrap", f"{entry.address}: {seen} for {span(entry.seconds)}"))
    for name, worker in status.workers.items():
        doing = f", {worker.doing}" if worker.doing else ""
        idle = "" if worker.idle_share is None else f", idle {worker.idle_share:.0%} of the last minute"
        memory = f", about {gigabytes(worker.estimated_bytes)}" if worker.estimated_bytes else ""
        where = f", {worker.device} in {worker.dtype}{memory} ({worker.why})" if worker.device else ""
        rows.append((f"worker {name}", f"{worker.state}{doing}{idle}, {worker.restarts} restarts{where}"))
    if status.processes:
        rows.append(("memory", _memory(status)))
    if status.sandbox:
        rows.append(("sandbox", ", ".join(status.sandbox)))
    if status.buffer.rejected:
        rows.append(("rejected", counts(status.buffer.rejected)))
    if status.unpublished:
        rows.append(("unpublished", counts(status.unpublished)))
    lines = [columns(rows)]
    lines += [f"problem: {printable(problem)}" for problem in status.problems]
    return "\n".join(lines)


def _memory(status: NodeStatus) -> str:
    """What each process takes, with what it started."""
    sizes: dict[str, int] = {}
    for process in status.processes:
        name = process.name.partition("/")[0]
        sizes[name] = sizes.get(name, 0) + process.resident_bytes
    return ", ".join(f"{name} {gigabytes(size)}" for name, size in sizes.items())


def _clock(status: NodeStatus) -> str:
    """Against those of the peers."""
    skew = status.clock.skew_seconds
    if skew is None:
        return "not compared with any peer's"
    of = f"{status.clock.peers} peers" if status.clock.peers > 1 else "one peer"
    return f"{abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} {of}"


def _weights(status: NodeStatus) -> str:
    weights = status.weights
    if not weights.channel:
        return "none published yet"
    served = "none" if weights.served_version is None else f"version {weights.served_version}"
    return f"by {weights.channel}, {served} served ({printable(weights.reason)})"


def _rewards(status: NodeStatus) -> str:
    named = (
        ("own", status.reward.local_mean),
        ("external", status.reward.external_mean),
        ("held-out", status.reward.eval),
    )
    return ", ".join(f"{name} {value:.3f}" for name, value in named if value is not None) or "none yet"


def _off_policy(training: TrainingStatus) -> str:
    """How far what was trained on last is from the policy that learned from it."""
    parts = []
    if training.sampler_kl is not None:
        parts.append(f"KL {training.sampler_kl:.2g} nats a token")
    if training.effective_share is not None:
        parts.append(f"effective sample {training.effective_share:.0%}")
    if training.clipped_share is not None:
        parts.append(f"clipped {training.clipped_share:.1%}")
    lags = [f"{count} of lag {lag}" for lag, count in enumerate(training.lag_groups) if count]
    if lags:
        parts.append(f"own groups {', '.join(lags)}")
    return ", ".join(parts) or "nothing trained on yet"


def _canary(canary: CanaryStatus) -> str:
    """Whether generator and trainer hold the same policy."""
    if canary.checked_at is None:
        return "off" if canary.state == "off" else "not compared yet"
    off = "not finite" if canary.difference is None else f"{canary.difference:.2g} nats off"
    ago = span(max(0.0, time.time() - canary.checked_at))
    failed = f", failed {canary.failures} times" if canary.failures else ""
    where = f"(tolerance {canary.tolerance:g}) at version {canary.version}"
    return f"{canary.state}, {off} {where}, {ago} ago{failed}"
