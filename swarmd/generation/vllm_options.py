"""What vLLM is asked for, in words of its own: no module of vLLM is needed to plan it.

A small cache, chosen from the model and said out loud, instead of all the memory that vLLM would
take; and what an update of the weights must bring, from the model's configuration alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from swarmd.errors import GenerationError
from swarmd.generation.messages import GeneratorSettings
from swarmd.generation.model import memory_cost
from swarmd.generation.vllm_choice import has_compiler
from swarmd.models.device import Compute
from swarmd.models.memory import usual_cache_bytes
from swarmd.models.tokenization import Tokenizer, end_token_id

__all__ = ["Prompt", "Sampled", "ServerOptions", "end_token_ids", "plan_server", "skeleton"]

_CPU_KV_BYTES = 1 << 30
_KV_SHARE = 0.7
"""Of the generator's memory on a GPU, the weights left out; the rest is for computing."""
_COMPILE_FROM = 20_000_000
"""Parameters from which compiling the model pays for the time it takes."""


@dataclass(frozen=True)
class ServerOptions:
    """How to start vLLM."""

    model_path: str
    dtype: str
    context_tokens: int
    kv_cache_bytes: int
    memory_share: float
    """Of the GPU's memory; a CPU knows no such limit."""
    is_compiled: bool
    shapes: Mapping[str, tuple[int, ...]]
    """Every tensor that an update must bring."""
    tied: Mapping[str, str]
    """Further names of such tensors, which an update may bring too: name → name it is tied to."""


@dataclass(frozen=True)
class Prompt:
    """What to complete."""

    token_ids_T: Sequence[int]
    max_new_tokens: int


@dataclass(frozen=True)
class Sampled:
    """One completion."""

    token_ids_T: tuple[int, ...]
    """With the stop token, where there was one."""
    logprobs_T: tuple[float, ...]
    versions_T: tuple[int, ...]
    """Version of the weights that each token was sampled from."""
    is_stopped: bool


def plan_server(settings: GeneratorSettings, compute: Compute, model: Any) -> ServerOptions:
    """Options for this model and device.

    Raises:
        GenerationError: the cache is too small for anything.
    """
    config = model.config.get_text_config()
    token_bytes = memory_cost(config, compute.dtype).bytes_per_token
    context = int(config.max_position_embeddings)
    size = sum(tensor.numel() for tensor in model.parameters())
    cache = settings.kv_cache_bytes
    if not cache:
        room = _CPU_KV_BYTES
        if compute.device.type == "cuda":
            total = torch.cuda.get_device_properties(compute.device).total_memory
            room = int((total * settings.memory_share - size * compute.dtype.itemsize) * _KV_SHARE)
        cache = usual_cache_bytes(token_bytes, context, room)
    # vLLM wants room for one completion of full context, in whole blocks, and keeps a block to itself.
    fits = cache // token_bytes // 128 * 128 - 128
    if fits < 128:
        raise GenerationError(
            f"{cache} bytes are too little for vLLM's key-value cache: a token takes {token_bytes}; "
            "set generation.kv_cache_bytes or generation.memory_share higher, or use transformers"
        )
    return ServerOptions(
        model_path=settings.model_path,
        dtype=compute.dtype_name,
        context_tokens=min(context, fits),
        kv_cache_bytes=cache,
        memory_share=settings.memory_share,
        is_compiled=size >= _COMPILE_FROM and (compute.device.type == "cuda" or has_compiler()),
        shapes={name: tuple(tensor.shape) for name, tensor in model.named_parameters()},
        tied=_tied(model),
    )


def skeleton(path: str) -> Any:
    """The model of the folder with no memory for its weights: names, shapes, and what is tied.

    Raises:
        GenerationError: the folder has no configuration that transformers knows.
    """
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise GenerationError(f"cannot load the model in {path}: {reason}") from error


def _tied(model: Any) -> dict[str, str]:
    """Further names of parameters: name → the name under which `named_parameters` has it."""
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    every = model.named_parameters(remove_duplicate=False)
    return {name: first[id(parameter)] for name, parameter in every if first[id(parameter)] != name}


def end_token_ids(path: str, config: Any, tokenizer: Tokenizer) -> list[int]:
    """Every token that ends a completion; a model may name more than its tokenizer.

    Raises:
        GenerationError: the tokenizer's end token is beyond the model's vocabulary.
    """
    end, vocabulary = end_token_id(tokenizer), int(config.get_text_config().vocab_size)
    if end >= vocabulary:
        raise GenerationError(
            f"the tokenizer ends with token {end}, the model has {vocabulary}: they do not belong together"
        )
    try:
        named = GenerationConfig.from_pretrained(path, local_files_only=True).eos_token_id
    except OSError:
        named = config.get_text_config().eos_token_id
    more = named if isinstance(named, list) else [] if named is None else [named]
    return sorted({end, *map(int, more)})
