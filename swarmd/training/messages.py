"""What the daemon and the trainer process say to each other. Plain frozen data."""

from __future__ import annotations

import msgspec

from swarmd.errors import ConfigError
from swarmd.types import RolloutGroup, WeightHandle
from swarmd.workers.framing import Method

__all__ = [
    "INITIALISE",
    "SAVE",
    "STEP",
    "SaveReply",
    "SaveRequest",
    "StepMetrics",
    "StepReply",
    "StepRequest",
    "TrainerReady",
    "TrainerSettings",
    "TrainingOptions",
]


class TrainingOptions(msgspec.Struct, frozen=True):
    """How to optimise. Fields, meanings and defaults are those of `config.TrainingSection`; what is chosen
    by the machine there has a value here.
    """

    learning_rate: float = 1.5e-4
    adam_beta1: float = 0.9
    adam_beta2: float = 0.99
    weight_decay: float = 0.0
    warmup_steps: int = 20
    schedule: str = "constant"
    schedule_steps: int = 0
    clip_low: float = 0.2
    clip_high: float = 0.28
    kl_weight: float = 0.0
    advantage_normalisation: str = "std"
    loss_aggregation: str = "token"
    inner_epochs: int = 1
    minibatches: int = 1
    max_grad_norm: float = 1.0
    importance: str = "clipped"
    importance_cap: float = 2.0
    external: str = "reencode"
    external_cap: float = 1.0
    external_max_kl: float = 1.0
    mask_probability: float = 0.05
    unlikely: str = "off"
    unlikely_below: float = -6.0
    optimizer: str = "adamw"
    tokens_at_once: int = 4096
    gradient_checkpointing: bool = False
    lora_rank: int = 0
    lora_alpha: float = 32.0

    def __post_init__(self) -> None:
        if self.schedule != "constant" and self.schedule_steps <= self.warmup_steps:
            raise ConfigError(
                f"training.schedule_steps must be above training.warmup_steps ({self.warmup_steps}) "
                f"with schedule {self.schedule}, got {self.schedule_steps}"
            )


class TrainerSettings(msgspec.Struct, frozen=True):
    """What a trainer needs to start."""

    model_path: str
    """Folder with configuration, safetensors weights and tokenizer."""
    device: str
    """cpu or cuda:N; auto and cuda choose."""
    dtype: str
    """Computed in: float32, bfloat16 or float16; auto chooses. Trained weights are float32 always."""
    threads: int
    """0: chosen from the number of cores."""
    seed: int
    """Of the order in which a batch is cut into minibatches."""
    channel_name: str
    """Name of the weight channel that this trainer creates, where it is shared memory."""
    checkpoint_folder: str
    checkpoint_keep: int
    temperature: float
    """Sampling temperature of the generator; log-probabilities are taken at it."""
    max_new_tokens: int
    """Token limit of a completion; the denominator of the aggregation `constant`."""
    options: TrainingOptions
    memory_share: float = 1.0
    """Largest part of a GPU's memory that it may occupy."""
    publish_dtype: str = ""
    """Format of the published weights: the generator's. Empty: as `dtype`."""
    channel: str = "auto"
    """Kind of weight channel: auto, shared_memory, file or cuda_ipc."""
    channel_folder: str = "weights"
    """For the files of a weight channel that has some."""
    is_gpu_shared: bool = False
    """Whether the generator computes on the same GPU."""


class TrainerReady(msgspec.Struct, frozen=True):
    """The trainer has loaded its model, or its newest intact checkpoint, and published the weights."""

    handle: WeightHandle
    policy_version: int
    """The version published: 0 for the model as it came, else that of the checkpoint."""
    steps: int
    """Optimizer steps taken so far."""
    device: str
    dtype: str
    tokenizer_fingerprint: str
    parameters: int
    """Trained numbers, tied weights counted once."""
    resumed_from: str | None
    """Path of the checkpoint, None for a fresh start."""
    node_state: bytes | None
    """What the daemon stored with that checkpoint."""
    canary_logprobs_T: tuple[float, ...] | None
    """As in StepReply."""
    notes: tuple[str, ...]
    """What a person should know: a checkpoint passed over, a weight channel that had to do."""
    channel_reason: str = ""
    """Why the weight channel is of the kind that `handle` names."""


class StepRequest(msgspec.Struct, frozen=True):
    """Learn from these groups."""

    groups: tuple[RolloutGroup, ...]
    canary: bool = False
    """Tell what the new policy finds of the canary's text."""


class StepMetrics(msgspec.Struct, frozen=True):
    """What one training step did. Means are over tokens; None where there were no such tokens."""

    loss: float | None
    """Of the last optimizer step; None when none was computed."""
    grad_norm: float | None
    """Before clipping, of the last optimizer step."""
    mean_ratio: float | None
    """New to old probability of own tokens."""
    clipped_share: float | None
    """Part of the tokens whose gradient the clip removed, or whose weight the cap cut."""
    kl: float | None
    """Mean KL to the start weights, nats a token; None without a KL penalty."""
    entropy: float | None
    """Nats a token, estimated as the mean surprise of own samples: of all own groups, also those
    without signal, under the policy that sampled them."""
    sampler_gap: float | None
    """Mean absolute difference, nats a token, between generator and trainer on own groups of the
    current version: near zero when both hold the same weights."""
    tokens: int
    """Completion tokens in the batch, groups without signal included."""
    groups: int
    groups_with_signal: int
    dropped_groups: int
    """Groups whose prompt leaves no room for a completion in the model's context."""
    updates: int
    """Optimizer steps taken in this step."""
    skipped_updates: int
    """Optimizer steps left out in this step because loss or gradient was not finite."""
    total_skipped_updates: int
    """The same, since the first start of this policy."""
    learning_rate: float
    """Of the next optimizer step."""
    seconds: float
    sampler_kl: float | None = None
    """KL from the policies that sampled own groups to the trainer's at the start of the step, nats a
    token: what weights a few versions old and a different engine add up to."""
    effective_share: float | None = None
    """Effective sample size of own tokens over their number, from 0 to 1: how even the importance
    weights of this step are, before any cap."""
    dropped_share: float | None = None
    """Part of peers' tokens that `external` takes out."""
    unlikely_groups: dict[str, int] = {}
    """Groups with rewarded completions that this policy would hardly say, by the peer id of their author."""
    lag_groups: tuple[int, ...] = ()
    """Own groups by policy lag: entry n counts those n versions old, entry 16 also older ones."""
    tokens_at_once: int = 0
    """Tokens that one forward may have now; fewer than the option says where memory was short."""


class StepReply(msgspec.Struct, frozen=True):
    """The step is done, and its weights are published if anything was updated."""

    policy_version: int
    """The newest version published."""
    metrics: StepMetrics
    problem: str = ""
    """Why the newest weights could not be published; the next step tries again. Empty: they are."""
    canary_logprobs_T: tuple[float, ...] | None = None
    """Under this version, nats, of each token of the canary's text but the first. None when not asked, or
    when the policy is ahead of it."""


class SaveRequest(msgspec.Struct, frozen=True):
    """Write a checkpoint."""

    node_state: bytes
    """Opaque to the trainer; comes back in TrainerReady."""
    round: int
    eval_reward: float | None = None
    """Mean reward on the held-out tasks; the best checkpoint by it is kept."""


class SaveReply(msgspec.Struct, frozen=True):
    """A complete checkpoint is on disk."""

    path: str
    bytes: int
    seconds: float


INITIALISE = Method("initialise", TrainerSettings, TrainerReady)
STEP = Method("step", StepRequest, StepReply, is_work=True)
SAVE = Method("save", SaveRequest, SaveReply)
