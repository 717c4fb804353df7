"""The node's configuration: one typed section per room. A field is documented once, here; the
configuration page of the docs is generated from these types.

`swarmd.config_sources` fills it from files, environment and flags and remembers where each value
came from.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]
PositiveSeconds = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, le=1)]
ShareOrAuto = Annotated[float, Field(ge=0, le=1)]


SAMPLER_NAMES = ("uniform", "advantage", "learnable", "fresh", "mixed", "reputation")
"""The sampling rules that come with swarmd."""


class Section(BaseModel):
    """Base of the sections: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class NodeSection(Section):
    """The node as a whole."""

    name: str = ""
    """Shown to peers beside the peer id. Empty: the last characters of the peer id."""
    rounds: NonNegative = 0
    """Stop after this many training rounds. 0: run until stopped."""
    seed: int = 0
    """Varies the node's task stream and sampling. Nodes differ anyway, by their peer ids."""
    json_logs: bool = False
    """One JSON object per log line instead of text."""


class ModelSection(Section):
    """The policy."""

    name: str = "tiny"
    """A known name (`swarmd model list`) or the path of a folder with safetensors weights."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N, for generator and trainer. auto: each on a GPU of its own where there are
    two, both on one where there is one, else the CPU. cuda: the same, and no GPU is an error."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """auto: bfloat16 where the device computes it. Else float32 on a CPU, and for small models there
    anyway; on a GPU float16 for the generator, while the trainer keeps to float32."""
    check_memory: bool = True
    """Refuse to start a model that is estimated to need more memory than is free. False: try it anyway."""
    threads: NonNegative = 0
    """CPU threads of each torch process. 0: chosen from the number of cores."""


class SwarmSection(Section):
    """Which swarm to be part of, and how to reach it."""

    manifest: str = ""
    """A built-in name (sapo-nine, tiny) or a TOML file. Empty: the one that fits the model."""
    join: tuple[str, ...] = ()
    """Multiaddrs of bootstrap peers, each ending in /p2p/PEERID. Dialled again for ever."""
    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/31337",)
    """Multiaddrs to listen on. A taken port: the next free one is used, and said."""
    isolated: bool = False
    """No network at all; join and listen are not used then."""


class GossipSection(Section):
    """What goes to peers and comes from them."""

    startup_timeout_seconds: PositiveSeconds = 60.0
    """For each phase of starting p2pd and joining. The message on failure names the phase."""
    redial_min_seconds: PositiveSeconds = 2.0
    """First pause before an unreachable bootstrap peer is dialled again; doubles up to the next."""
    redial_max_seconds: PositiveSeconds = 60.0
    """Longest pause between two dials of a bootstrap peer."""
    receive_queue_messages: Positive = 1024
    """Messages that wait for validation; when full, the peer with most of them loses its oldest."""
    receive_queue_bytes: Positive = 32_000_000
    """Bytes of such messages."""
    max_message_age_seconds: PositiveSeconds = 600.0
    """Older messages, by the author's clock, are ignored."""
    max_clock_skew_seconds: PositiveSeconds = 60.0
    """Messages from further in the future are ignored."""
    record_interval_seconds: PositiveSeconds = 30.0
    """How often the node's own record is written to the DHT."""
    record_ttl_seconds: PositiveSeconds = 120.0
    """When a node record expires unless renewed."""
    catch_up_groups: NonNegative = 256
    """How many groups to ask a peer for after joining. 0: do not ask."""
    catch_up_bytes: Positive = 4_000_000
    """The most bytes of groups to ask for, and to serve, in one catch-up."""
    share_logprobs: bool = True
    """Publish the sampled tokens' log-probabilities with each group."""


class PeersSection(Section):
    """What a peer may use of this node, and what becomes of one that misbehaves."""

    messages_per_second: PositiveSeconds = 20.0
    """Messages taken from one peer. Ten times as many are a flood and cost its good name."""
    bytes_per_second: PositiveSeconds = 500_000.0
    """Bytes taken from one peer."""
    verifier_share: Share = 0.25
    """Seconds of a verifier's processor time one peer may cause in each second."""
    burst_seconds: PositiveSeconds = 10.0
    """So many seconds of each of these may be used at once."""
    newcomer_part: Share = 0.2
    """Part of a share, and of `replay.peer_share`, that a new peer has."""
    newcomer_groups: Positive = 20
    """Valid groups after which a peer is no longer new."""
    neighbourhood_shares: Annotated[float, Field(ge=1)] = 4.0
    """Shares that all peers of one IPv4 /24, IPv6 /56 or relay have together."""
    exempt_networks: tuple[str, ...] = (
        "127.0.0.0/8",
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "169.254.0.0/16",
        "100.64.0.0/10",
        "::1/128",
        "fc00::/7",
        "fe80::/10",
    )
    """Networks whose addresses say nothing about who lives together. Empty: none, for tests of attacks."""
    half_life_seconds: PositiveSeconds = 600.0
    """After so long, what a peer did counts half."""
    ignore_below: Annotated[float, Field(lt=0)] = -20.0
    """Score below which a peer's messages are ignored for `ignore_seconds`. A rejected message costs 1."""
    close_below: Annotated[float, Field(lt=0)] = -50.0
    """Score below which its connection is closed and not opened again for a while."""
    ignore_seconds: PositiveSeconds = 60.0
    """See `ignore_below`."""
    backoff_min_seconds: PositiveSeconds = 300.0
    """How long a peer stays closed the first time; doubles up to the next."""
    backoff_max_seconds: PositiveSeconds = 86_400.0
    """Longest time that a peer stays closed."""


class RolloutSection(Section):
    """What the node samples."""

    group_size: Positive = 8
    """Completions per question (G), within the manifest's bounds."""
    batch_questions: Positive = 4
    """Questions sampled in one call of the generator."""
    temperature: PositiveSeconds = 1.0
    """Sampling temperature; the trainer uses the same."""
    max_new_tokens: NonNegative = 0
    """Token limit of a completion. 0: the manifest's."""


class GenerationSection(Section):
    """The generator process."""

    engine: Literal["auto", "vllm", "transformers"] = "auto"
    """auto: vLLM where it is installed in a version that swarmd knows, else transformers."""
    kv_cache_bytes: NonNegative = 0
    """vLLM's key-value cache. 0: room for 64 completions of full context, at most 1 GiB on a CPU and
    what `memory_share` leaves beside the weights on a GPU."""
    device: str = ""
    """Of the generator alone: auto, cpu, cuda or cuda:N. Empty: as model.device."""
    memory_share: ShareOrAuto = 0.0
    """Largest part of a GPU's memory that the generator may occupy. 0: 0.4 of what is free on a GPU that the
    trainer uses too, 0.9 on one of its own."""
    stall_seconds: PositiveSeconds = 60.0
    """A vLLM that makes no step for this long is given up, and the generator restarted."""
    timeout_seconds: PositiveSeconds = 600.0
    """Deadline of one sampling call; a generator that passes it is restarted."""
    canary_every_versions: NonNegative = 20
    """Policy versions between two comparisons of generator and trainer on a fixed text; also after
    each start of either. A generator that is off gets the weights again, or is restarted. 0: never."""
    canary_tolerance: Annotated[float, Field(ge=0)] = 0.0
    """Nats by which they may differ. 0: 0.001 in float32 (largest difference), 0.05 in 16-bit formats
    (mean over the text)."""


class ReplaySection(Section):
    """The buffer of rollout groups, and which of them to learn from."""

    capacity_groups: Positive = 512
    """External groups held at most; the oldest go first."""
    capacity_bytes: Positive = 64_000_000
    """Bytes held at most. Own groups take what they need, peers' groups the rest."""
    peer_share: Share = 0.5
    """Largest part of the external capacity that one peer may occupy."""
    max_age_seconds: PositiveSeconds = 600.0
    """Peers' groups older than this are not drawn."""
    max_policy_lag: NonNegative = 16
    """Peers' groups more versions than this behind their author's newest are not drawn. Own groups are
    never trained on later than this, and never dropped for being late: sampling pauses in time."""
    local_groups: NonNegative = 4
    """Own groups in a training batch (I)."""
    external_groups: NonNegative = 4
    """Peers' groups in a training batch (J); too few are filled up with own groups."""
    max_uses: Positive = 1
    """How often an external group may be drawn."""
    sampler: str = "uniform"
    """Which peers' groups to draw. uniform: each with the same chance. advantage: by the size of their
    advantages, no old ones. learnable: kinds of task that this node gets right about half of the time.
    fresh: the newest. mixed: merged with own groups of the same kind of task, under one mean. reputation:
    of authors whose groups had something to teach. MODULE:FUNCTION: a rule of your own."""
    adaptive: bool = False
    """Let J go up and down by one every ten rounds, I + J staying: up while peers' groups carry more signal
    than own ones, down when own ones do or the held-out reward oscillates."""
    adaptive_least: NonNegative = 1
    """Smallest J then."""
    adaptive_most: NonNegative = 0
    """Largest J then. 0: three quarters of I + J."""
    adaptive_spread: Annotated[float, Field(ge=0)] = 0.05
    """Standard deviation of the last six held-out rewards around their trend above which J goes down."""


class ScreensSection(Section):
    """Screens against right answers that carry something else along. off, warn (count for the peer) or
    drop (count, and do not learn from it); `training.unlikely` is one more.
    """

    long: Literal["off", "warn", "drop"] = "warn"
    """A peer's rewarded completion that is much longer than any own one of the same dataset."""
    long_factor: Annotated[float, Field(ge=1)] = 4.0
    """So many times as long."""
    repetitive: Literal["off", "warn", "drop"] = "warn"
    """A peer's rewarded completion of 200 bytes or more that says the same over and over."""
    repetitive_below: Share = 0.2
    """It can be compressed to less than this part of its bytes."""
    batch_share: Literal["off", "warn", "drop"] = "off"
    """More groups of a batch from one peer than its part."""
    batch_share_most: Share = 0.5
    """Largest part of `replay.external_groups`; one group is always allowed."""


class RewardsSection(Section):
    """Scoring."""

    strict: bool = True
    """1 when the task's own score is above 0.99, else 0. False: the score as it is (partial credit)."""
    verifiers: Positive = 1
    """Verifier processes."""
    timeout_seconds: PositiveSeconds = 10.0
    """Wall time for one group; a verifier that passes it is killed and replaced."""
    memory_bytes: Positive = 2_000_000_000
    """Address space of a scoring process above what it starts with."""


class TrainingSection(Section):
    """The optimisation. Names follow the GRPO literature."""

    learning_rate: PositiveSeconds = 1.5e-4
    """Of Adam."""
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """First-moment decay of Adam."""
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """Second-moment decay of Adam."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Decoupled weight decay."""
    warmup_steps: NonNegative = 20
    """Linear warm-up of the learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after the warm-up; linear and cosine reach zero at `schedule_steps`."""
    schedule_steps: NonNegative = 0
    """Length of the schedule in optimizer steps, the warm-up included."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The probability ratio is clipped below at 1 - clip_low."""
    clip_high: Annotated[float, Field(gt=0)] = 0.28
    """The probability ratio is clipped above at 1 + clip_high."""
    kl_weight: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the KL penalty against the start weights."""
    advantage_normalisation: Literal["std", "none"] = "std"
    """std: rewards minus group mean, divided by group standard deviation. none: no division."""
    loss_aggregation: Literal["token", "sequence", "constant"] = "token"
    """token: mean over all tokens of the batch. sequence: mean over sequences of their token means.
    constant: sum over tokens divided by sequences times the token limit."""
    inner_epochs: Positive = 1
    """Passes over a batch."""
    minibatches: Positive = 1
    """Optimizer steps per pass."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Gradient norm is clipped to this."""
    importance: Literal["clipped", "none", "token_truncated", "sequence_geometric", "decoupled"] = "clipped"
    """How own groups that an older policy sampled are corrected. clipped: ratio to the sampler, clipped.
    none: no correction. token_truncated: each token weighted by its ratio to the sampler, at most
    `importance_cap`. sequence_geometric: one ratio a completion, the geometric mean. decoupled: that
    weight times the clipped ratio to the policy at the start of the step."""
    importance_cap: Annotated[float, Field(gt=0)] = 2.0
    """Largest importance weight."""
    external: Literal["reencode", "mask", "f_tis"] = "f_tis"
    """Peers' groups. reencode, as in the paper: learned from as if they were own. mask: less the improbable
    tokens of completions with negative advantage. f_tis: weighted by the sender's log-probabilities where
    its tokenizer is the same, less completions with negative advantage that are far from the own policy;
    where it is another, as mask."""
    external_cap: Annotated[float, Field(gt=0)] = 1.0
    """Largest importance weight of peers' tokens (f_tis). At 1 no peer can raise a weight by a lie."""
    external_max_kl: Annotated[float, Field(gt=0)] = 1.0
    """Nats a token from the sender's policy to the own, above which such a completion is left out (f_tis)."""
    mask_probability: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Tokens below it, by the own policy, are improbable (mask)."""
    unlikely: Literal["off", "warn", "drop"] = "drop"
    """Peers' rewarded completions that the own policy would hardly say, as `screens` holds up others."""
    unlikely_below: Annotated[float, Field(le=0)] = -6.0
    """Mean log-probability, nats a token, below which a completion is unlikely."""
    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"
    """adamw_8bit: a quarter of the memory for its state; needs the extra `adam8bit`."""
    tokens_at_once: NonNegative = 0
    """Tokens of prompts and completions in one forward; the gradient is summed over as many as a
    batch needs. 0: 4096, or as many as fit into the memory that is free at the start. Halved by itself when
    memory runs out, and doubled again later."""
    gradient_checkpointing: bool = False
    """Compute each layer again in the backward pass instead of keeping what it computed: a third more
    time, much less memory, the same result."""
    lora_rank: NonNegative = 0
    """Train LoRA adapters of this rank instead of all weights; needs the extra `lora`. 0: all weights."""
    lora_alpha: Annotated[float, Field(gt=0)] = 32.0
    """Adapters are scaled by lora_alpha / lora_rank."""
    device: str = ""
    """Of the trainer alone: auto, cpu, cuda or cuda:N. Empty: as model.device."""
    memory_share: ShareOrAuto = 0.0
    """Largest part of a GPU's memory that the trainer may occupy. 0: half of what is free on a GPU that the
    generator uses too, 0.9 on one of its own."""
    timeout_seconds: PositiveSeconds = 600.0
    """Deadline of one training step; a trainer that passes it is restarted."""

    def options(self) -> dict[str, Any]:
        """How to optimise: all but what is about the process and what it has room for."""
        return self.model_dump(exclude={"timeout_seconds", "device", "memory_share", "tokens_at_once"})


class ScheduleSection(Section):
    """How the loops keep in step, and what happens every so many rounds."""

    mode: Literal["asynchronous", "synchronous"] = "asynchronous"
    """asynchronous: sampling goes on while the trainer works, so groups may be some versions old.
    synchronous, for comparison: sample a round's groups, train on them, load the new policy, in turn."""
    max_ahead: NonNegative = 0
    """Own groups sampled or being sampled that no step has taken yet, at most; then sampling pauses. At
    least I + J, since a node alone fills the whole batch itself. 0: that and one sampling call more, so
    that sampling need not wait while a batch is scored. Not used when synchronous."""
    eval_every_rounds: NonNegative = 10
    """Rounds between two evaluations on held-out tasks. 0: never."""
    eval_tasks: Positive = 32
    """Held-out tasks in one evaluation."""
    checkpoint_every_rounds: NonNegative = 20
    """Rounds between two checkpoints. 0: only at the end."""
    checkpoint_keep: Positive = 2
    """Newest checkpoints kept. The one with the best held-out reward is kept besides."""


class WeightsSection(Section):
    """The way of new weights from the trainer to the generator."""

    channel: Literal["auto", "shared_memory", "file", "cuda_ipc"] = "auto"
    """shared_memory: memory that both see (/dev/shm), which must have room for the weights twice. file: a
    file of the home, slower. cuda_ipc: the memory of the one GPU that both compute on, which must hold the
    weights three times more. auto: cuda_ipc where both are on one GPU, else shared_memory, and file where
    that has no room; `swarmd status` says which it is, and why."""


class WorkersSection(Section):
    """Supervision of the worker processes."""

    start_timeout_seconds: PositiveSeconds = 300.0
    """From starting a worker until it is ready, model loading included."""
    restart_min_seconds: PositiveSeconds = 0.2
    """First pause before a dead worker is started again; doubles up to the next while it does no work."""
    restart_max_seconds: PositiveSeconds = 30.0
    """Longest pause before a restart."""
    max_fast_failures: Positive = 5
    """Failures of a worker after which the node stops with an error. A failure counts for
    `failure_window_seconds`, and until the worker has done some work after it."""
    failure_window_seconds: PositiveSeconds = 120.0
    """See max_fast_failures."""
    stop_timeout_seconds: PositiveSeconds = 10.0
    """How long a worker may take to stop before it is killed."""
    heartbeat_timeout_seconds: PositiveSeconds = 60.0
    """A ready worker that gave no sign of life for this long is killed and started again."""


class MonitorSection(Section):
    """Watching the node."""

    metrics_listen: str = ""
    """HOST:PORT of the Prometheus endpoint. Empty: none."""
    history_rounds: Positive = 100_000
    """Rounds kept in the history."""
    log_bytes: Positive = 10_000_000
    """Size at which the log file is rotated; three old ones are kept."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level that is logged."""


class Config(Section):
    """All of it."""

    node: NodeSection = NodeSection()
    model: ModelSection = ModelSection()
    swarm: SwarmSection = SwarmSection()
    gossip: GossipSection = GossipSection()
    peers: PeersSection = PeersSection()
    rollout: RolloutSection = RolloutSection()
    generation: GenerationSection = GenerationSection()
    replay: ReplaySection = ReplaySection()
    screens: ScreensSection = ScreensSection()
    rewards: RewardsSection = RewardsSection()
    training: TrainingSection = TrainingSection()
    weights: WeightsSection = WeightsSection()
    schedule: ScheduleSection = ScheduleSection()
    workers: WorkersSection = WorkersSection()
    monitor: MonitorSection = MonitorSection()

    @model_validator(mode="after")
    def _a_node_alone_can_fill_a_batch(self) -> Self:
        batch_groups = self.replay.local_groups + self.replay.external_groups
        if batch_groups == 0:
            raise ValueError("replay.local_groups and replay.external_groups cannot both be 0")
        if 0 < self.schedule.max_ahead < batch_groups:
            raise ValueError(
                f"schedule.max_ahead must be at least replay.local_groups + replay.external_groups "
                f"({batch_groups}), got {self.schedule.max_ahead}"
            )
        return self
