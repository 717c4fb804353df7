"""What the daemon and the generator process say to each other."""

from __future__ import annotations

import msgspec

from swarmd.types import Prompt, SampledGroup, WeightHandle
from swarmd.workers.framing import Method

__all__ = [
    "CANARY",
    "INITIALISE",
    "LOAD_WEIGHTS",
    "SAMPLE",
    "CanaryReply",
    "CanaryRequest",
    "GeneratorReady",
    "GeneratorSettings",
    "LoadWeightsReply",
    "LoadWeightsRequest",
    "SampleReply",
    "SampleRequest",
]


class GeneratorSettings(msgspec.Struct, frozen=True):
    """Which model to load and how to run it."""

    model_path: str
    """Folder with config, safetensors weights and tokenizer."""
    engine: str
    """auto, transformers or vllm."""
    device: str
    """cpu or cuda:N; auto and cuda choose."""
    dtype: str
    """float32, bfloat16 or float16; auto chooses."""
    threads: int
    """CPU threads of torch; 0: chosen from the number of cores."""
    seed: int
    """Mixed into the seed of every request."""
    kv_cache_bytes: int = 0
    """vLLM's key-value cache. 0: chosen from model and memory."""
    memory_share: float = 0.4
    """Largest part of a GPU's memory that it may occupy."""
    stall_seconds: float = 60.0
    """A vLLM that makes no step for this long is given up."""


class GeneratorReady(msgspec.Struct, frozen=True):
    """What was loaded."""

    engine: str
    device: str
    dtype: str
    tokenizer_fingerprint: str
    context_tokens: int
    """Prompt and completion together may have this many tokens."""
    note: str
    """One line for the person who watches: what was chosen and why. May be empty."""


class SampleRequest(msgspec.Struct, frozen=True):
    """Sample `group_size` completions for each prompt."""

    prompts: tuple[Prompt, ...]
    group_size: int
    max_new_tokens: int
    temperature: float
    """0: the most likely token each time. Log-probabilities are then those at temperature 1."""
    seed: int
    """The same seed, prompts and weights give the same completions."""


class SampleReply(msgspec.Struct, frozen=True):
    """One group per prompt, in the order of the prompts."""

    groups: tuple[SampledGroup, ...]
    generated_tokens: int
    """End tokens included."""
    seconds: float


class LoadWeightsRequest(msgspec.Struct, frozen=True):
    """Load weights from a channel."""

    handle: WeightHandle
    version: int
    """At least this version is expected there."""
    again: bool = False
    """Load also what is loaded already."""


class LoadWeightsReply(msgspec.Struct, frozen=True):
    """What was loaded: the newest version there, which may be newer than the one asked for."""

    version: int
    seconds: float


class CanaryRequest(msgspec.Struct, frozen=True):
    """Compute the log-probabilities of the canary's text with the weights that are served."""


class CanaryReply(msgspec.Struct, frozen=True):
    """What was found."""

    version: int
    """Policy version of the weights."""
    logprobs_T: tuple[float, ...]
    """Nats at temperature 1, of each token of the text but the first."""
    dtype: str
    """float32, bfloat16 or float16: what the engine computes in."""


INITIALISE = Method("initialise", GeneratorSettings, GeneratorReady)
SAMPLE = Method("sample", SampleRequest, SampleReply, is_work=True)
LOAD_WEIGHTS = Method("load_weights", LoadWeightsRequest, LoadWeightsReply)
CANARY = Method("canary", CanaryRequest, CanaryReply)
