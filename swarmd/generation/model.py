"""A model folder as a transformers model, and new weights for it.

Loading reads safetensors only, asks no network and runs no code of the folder. New weights are
checked as a whole before the first is copied, so a refused update leaves the old weights whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from swarmd.errors import GenerationError
from swarmd.generation.batching import MemoryCost
from swarmd.models.loading import LOADING_ERRORS
from swarmd.models.tokenization import Tokenizer, end_token_id

__all__ = ["end_token_ids", "fitting_weights", "load_model", "memory_cost", "replace_weights"]

_LOGIT_BYTES = 32
"""Per vocabulary entry of a row: logits, log-probabilities, probabilities and their sums."""


def load_model(path: str, dtype: torch.dtype) -> Any:
    """The causal language model in folder `path`, on the CPU.

    Raises:
        GenerationError: the folder cannot be loaded.
    """
    logging.disable_progress_bar()  # The daemon shows progress; a bar only fills the worker's log.
    try:
        model, loading = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except LOADING_ERRORS as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise GenerationError(f"cannot load the model in {path}: {reason}") from error
    # transformers fills what is missing with random numbers, and only warns.
    if missing := sorted(loading["missing_keys"]):
        raise GenerationError(f"the weights in {path} lack {len(missing)} tensors, such as {missing[0]}")
    return model


@torch.no_grad()
def replace_weights(model: Any, tensors: Mapping[str, Tensor]) -> None:
    """Copy `tensors` over the model's weights, converted to its dtype and device; all or nothing.

    A tied weight may be given under one of its names or under all of them.

    Raises:
        GenerationError: a tensor is unknown, missing, of another shape, or given twice differently.
    """
    own = model.state_dict()
    source_of: dict[int, Tensor] = {}
    for name, tensor in tensors.items():
        if name not in own or own[name].shape != tensor.shape:
            raise GenerationError(f"the weights are of another model: tensor {name} {list(tensor.shape)}")
        known = source_of.setdefault(own[name].data_ptr(), tensor)
        if known is not tensor and not torch.equal(known, tensor):
            raise GenerationError(f"the weights are of a model that is not tied: tensor {name}")
    for name, parameter in model.named_parameters():
        if parameter.data_ptr() not in source_of:
            raise GenerationError(f"the weights are of another model: tensor {name} is missing")
    for name in tensors:
        own[name].copy_(tensors[name])


def fitting_weights(
    tensors: Mapping[str, torch.Tensor], expected: Mapping[str, tuple[int, ...]], tied: Mapping[str, str]
) -> dict[str, torch.Tensor]:
    """The tensors to load, each under its first name, when they are those of a model with these `expected`
    shapes and these further names of `tied` ones (name → first name).

    Raises:
        GenerationError: a tensor is unknown, missing, of another shape, or given twice differently.
    """
    for name, tensor in tensors.items():
        known = expected.get(tied.get(name, name))
        if known is None or known != tuple(tensor.shape):
            raise GenerationError(f"the weights are of another model: tensor {name} {list(tensor.shape)}")
        twin = tensors.get(tied.get(name, name), tensor)
        if twin is not tensor and not torch.equal(twin, tensor):
            raise GenerationError(f"the weights are of a model that is not tied: tensor {name}")
    own = {tied.get(name, name): tensor for name, tensor in tensors.items()}
    if missing := sorted(set(expected) - set(own)):
        raise GenerationError(f"the weights are of another model: tensor {missing[0]} is missing")
    return own


def end_token_ids(model: Any, tokenizer: Tokenizer) -> list[int]:
    """Every token that ends a completion; a model may name more than its tokenizer.

    Raises:
        GenerationError: the tokenizer's end token is beyond the model's vocabulary.
    """
    end, vocabulary = end_token_id(tokenizer), int(model.config.get_text_config().vocab_size)
    if end >= vocabulary:
        raise GenerationError(
            f"the tokenizer ends with token {end}, the model has {vocabulary}: they do not belong together"
        )
    named = model.generation_config.eos_token_id
    more = named if isinstance(named, list) else [] if named is None else [named]
    return sorted({end, *map(int, more)})


def memory_cost(config: Any, dtype: torch.dtype) -> MemoryCost:
    """What a row of a model with this configuration occupies while it is decoded."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return MemoryCost(
        bytes_per_token=2 * config.num_hidden_layers * heads * width * dtype.itemsize,
        bytes_per_row=config.vocab_size * _LOGIT_BYTES,
    )
