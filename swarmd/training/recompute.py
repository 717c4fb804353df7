"""Gradient checkpointing that works with a prompt's keys and values.

transformers drops the cache when a layer is to be computed again in the backward pass, since writing
to it twice would be wrong. Here a layer gets the cache's tensors as inputs and gives the new ones back
as outputs, so computing it again changes nothing: results and gradients are those without
checkpointing, while only the input of each layer, and its keys and values, are kept in between.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from swarmd.errors import TrainingError

__all__ = ["recompute_layers"]


def recompute_layers(body: Any, cache_argument: str) -> None:
    """Make every layer of `body`, a model without its output layer, keep only its input for the gradient.

    `cache_argument` is the name under which a layer gets the cache. Without gradient, layers run as
    before. Raises TrainingError for a model whose layers are not a list named `layers`.
    """
    layers = getattr(body, "layers", None)
    if not isinstance(layers, torch.nn.ModuleList):
        raise TrainingError(
            f"training.gradient_checkpointing does not know the layers of {type(body).__name__}; turn it off"
        )
    for index, layer in enumerate(layers):
        layer.forward = _recomputed(layer.forward, index, cache_argument)


def _recomputed(forward: Callable[..., Tensor], index: int, cache_argument: str) -> Callable[..., Tensor]:
    def run_layer(hidden_BTH: Tensor, *arguments: Any, **named: Any) -> Tensor:
        if not torch.is_grad_enabled():
            return forward(hidden_BTH, *arguments, **named)
        cache = named.pop(cache_argument, None)
        if cache is None:
            plain: Tensor = checkpoint(
                forward, hidden_BTH, *arguments, use_reentrant=False, preserve_rng_state=False, **named
            )
            return plain
        entry = cache.layers[index]
        before = copy.copy(entry)
        after: dict[str, Any] = {}

        def run_pure(
            hidden_BTH: Tensor, keys: Tensor | None, values: Tensor | None
        ) -> tuple[Tensor, Tensor | None, Tensor | None]:
            scratch, scratch_entry = copy.copy(cache), copy.copy(before)
            scratch_entry.keys, scratch_entry.values = keys, values
            scratch.layers = [*cache.layers]
            scratch.layers[index] = scratch_entry
            output = forward(hidden_BTH, *arguments, **{cache_argument: scratch}, **named)
            if not after:
                after.update(vars(scratch_entry))
            if before.is_initialized:
                # These are the completions. Nothing follows them that would need their keys and values.
                return output, None, None
            return output, scratch_entry.keys, scratch_entry.values

        output_BTH, keys, values = checkpoint(
            run_pure, hidden_BTH, before.keys, before.values, use_reentrant=False, preserve_rng_state=False
        )
        vars(entry).update({**after, "keys": keys, "values": values})
        result: Tensor = output_BTH
        return result

    return run_layer
