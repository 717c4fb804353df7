"""What a node says about itself. `status --json` and `peers --json` are these types as JSON, and the
screen, the metrics and the last known state on disk are made from them and from nothing else.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec

NodeState = Literal["starting", "training", "waiting", "stopping", "stopped"]


class RewardStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Mean rewards. None where there is nothing to average yet."""

    local_mean: float | None = None
    """Of the own groups sampled during the last round, none of them left out."""
    external_mean: float | None = None
    """Of the peers' groups received during the last round."""
    eval: float | None = None
    """On the held-out tasks, at the last evaluation."""
    recent: tuple[float, ...] = ()
    """`local_mean` of the last rounds, oldest first."""


class BufferStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The replay buffer."""

    local: int = 0
    external: int = 0
    bytes: int = 0
    rejected: dict[str, int] = {}
    """Groups that were refused or left undrawn since the start, by reason."""
    sampler: str = ""
    """The rule by which peers' groups are drawn."""
    external_wanted: int | None = None
    """Peers' groups wanted in a batch now (J). None before the first round."""


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One worker process."""

    pid: int | None
    state: str
    restarts: int = 0
    doing: str = ""
    """What it said last that it is busy with, while it starts."""
    device: str = ""
    """What it computes the model on: cpu or cuda:N. Empty: it has no model."""
    dtype: str = ""
    """The number format it computes in."""
    why: str = ""
    """Why this device and this format, and what samples."""
    idle_share: float | None = None
    """Part of the last minute, 0 to 1, in which nothing was asked of it: it waited for work. None
    before training."""
    estimated_bytes: int = 0
    """Memory that it was estimated to take, before it was started. 0: not estimated."""


class ProcessStatus(msgspec.Struct, frozen=True):
    """What one process takes of the machine."""

    name: str
    """daemon, p2pd, the name of a worker; NAME/PROGRAM for what a worker started."""
    pid: int
    resident_bytes: int
    """Memory in use, what it shares with others included."""
    open_files: int | None
    """File descriptors. None where the kernel does not tell."""
    threads: int


class BootstrapStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One address that the node was told to join at."""

    address: str
    is_reachable: bool
    last_error: str | None = None
    seconds: float = 0.0
    """How long it has been so."""


class TrainingStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The last training step. None where a figure does not exist."""

    loss: float | None = None
    grad_norm: float | None = None
    entropy: float | None = None
    """Nats a token, of own samples."""
    mean_ratio: float | None = None
    """Probability of own tokens under the trained policy to that which they were sampled with."""
    clipped_share: float | None = None
    """Part of the tokens that the clip or the cap holds back."""
    kl: float | None = None
    """To the start weights, nats a token, where the KL penalty is on."""
    sampler_kl: float | None = None
    """From the policies that sampled own groups to the trainer's, nats a token."""
    sampler_gap: float | None = None
    """Mean absolute difference between generator and trainer, nats a token, on own groups of lag 0."""
    effective_share: float | None = None
    """Effective sample size of own tokens over their number, 0 to 1."""
    dropped_share: float | None = None
    """Part of peers' tokens that was taken out."""
    lag_groups: tuple[int, ...] = ()
    """Own groups by policy lag: entry n counts those n versions old."""
    learning_rate: float | None = None
    step_seconds: float = 0.0
    skipped_steps: int = 0
    """Optimizer steps left out since the start because a number was not finite."""
    tokens_at_once: int | None = None
    """Tokens that one forward may have now; fewer than at the start while memory is short."""


class WeightsStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The way of new weights from the trainer to the generator."""

    channel: str = ""
    """shared_memory, file or cuda_ipc; empty before the first publication."""
    reason: str = ""
    """Why it is this one."""
    served_version: int | None = None
    """Policy version that the generator samples with."""


class CanaryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The last comparison of generator and trainer on a fixed text, under the same policy version."""

    state: Literal["off", "waiting", "good", "bad"] = "off"
    """waiting: none since the start."""
    version: int | None = None
    difference: float | None = None
    """Nats; None where a log-probability was not finite."""
    tolerance: float | None = None
    checked_at: float | None = None
    """Wall clock, seconds since the Unix epoch."""
    failures: int = 0
    """Comparisons that failed since the start."""


class ClockStatus(msgspec.Struct, frozen=True, kw_only=True):
    """This clock against those of the peers."""

    skew_seconds: float | None = None
    """Seconds ahead of them (behind: negative), the median over peers. None: none was heard lately."""
    peers: int = 0
    """Peers that count."""


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A node at one moment."""

    peer_id: str
    name: str = ""
    swarm: str
    """Name of the manifest."""
    swarm_id: str
    model: str
    state: NodeState
    round: int = 0
    rounds: int = 0
    """The node stops after this many. 0: it runs until stopped."""
    policy_version: int = 0
    uptime_seconds: float = 0.0
    addresses: tuple[str, ...] = ()
    """Multiaddrs under which peers reach the node."""
    is_isolated: bool = False
    peers: int = 0
    """Peers connected now."""
    bootstrap: tuple[BootstrapStatus, ...] = ()
    dht_requests: dict[str, int] = {}
    """Requests to other nodes' part of the DHT since the start: answered, refused, unanswered."""
    clock: ClockStatus = ClockStatus()
    reward: RewardStatus = RewardStatus()
    buffer: BufferStatus = BufferStatus()
    workers: dict[str, WorkerStatus] = {}
    training: TrainingStatus = TrainingStatus()
    weights: WeightsStatus = WeightsStatus()
    canary: CanaryStatus = CanaryStatus()
    rounds_per_minute: float = 0.0
    groups_per_minute: float = 0.0
    """Groups trained on, lately."""
    tokens_per_second: float = 0.0
    """Sampled by the generator."""
    trained_groups: int = 0
    """Groups trained on since the start."""
    external_groups: int = 0
    """Of these, the peers'."""
    filled: int = 0
    """Own groups that stood in for missing external ones, since the start."""
    unpublished: dict[str, int] = {}
    """Own groups that were not published, by reason."""
    loop_lag_max_ms: float = 0.0
    """Longest time that the daemon's event loop was blocked, since training began."""
    resident_bytes: int = 0
    """Memory of the daemon without its workers."""
    processes: tuple[ProcessStatus, ...] = ()
    """The daemon and all processes below it, as seen within the last seconds."""
    waiting_for: str = ""
    """Who waits for what, in words: `trainer waits for 2 more rollout groups`. Empty: nobody waits."""
    sandbox: tuple[str, ...] = ()
    """What encloses scoring: rlimits, no_new_privs, seccomp, landlock, namespaces."""
    problems: tuple[str, ...] = ()
    """What a person should know or see to, one line each."""
    versions: dict[str, str] = {}

    @property
    def external_share(self) -> float:
        """Part of the trained groups that came from peers, 0 to 1."""
        return self.external_groups / self.trained_groups if self.trained_groups else 0.0


class PeerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a node knows about a peer. Name, model, round and addresses are the peer's own claims."""

    peer_id: str
    name: str = ""
    model: str = ""
    round: int | None = None
    addresses: tuple[str, ...] = ()
    accepted: int = 0
    """Groups accepted from it."""
    rejected: dict[str, int] = {}
    """Messages refused, by reason."""
    screened: dict[str, int] = {}
    """Accepted groups that a screen held up, by screen."""
    last_seen_seconds: float | None = None
    """Since anything was heard from it."""
    state: str = "newcomer"
    """newcomer, member, ignored, closed, banned or allowed. See the page on security."""
    score: float = 0.0
    """Good deeds minus bad ones, lately."""
    validity: float | None = None
    """Valid groups as a share of these and of what was rejected. None where nothing was counted."""
    usefulness: float | None = None
    """Groups with signal as a share of the valid ones."""
    agreement: float | None = None
    """Valid groups as a share of these and of what disagreed with what this node finds itself."""
    seconds_left: float = 0.0
    """Until an ignored or closed peer is heard again."""


class LastKnown(msgspec.Struct, frozen=True):
    """What is kept on disk for the time when the node does not run."""

    status: NodeStatus
    peers: tuple[PeerStatus, ...] = ()


def save_last_known(path: Path, last_known: LastKnown) -> None:
    """Write it so that a reader sees the old file or the new one. Raises OSError, leaving the old one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(msgspec.json.encode(last_known))
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def load_last_known(path: Path) -> LastKnown | None:
    """The last known state, as stopped. None when there is none, or none that can be read."""
    try:
        last_known = msgspec.json.decode(path.read_bytes(), type=LastKnown)
    except (OSError, msgspec.MsgspecError, RecursionError):
        return None
    stopped = {
        name: msgspec.structs.replace(worker, pid=None, state="stopped", doing="")
        for name, worker in last_known.status.workers.items()
    }
    status = msgspec.structs.replace(
        last_known.status, state="stopped", peers=0, workers=stopped, waiting_for=""
    )
    return LastKnown(status, last_known.peers)
