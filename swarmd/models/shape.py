"""How large a model is, from its configuration and the headers of its weights; nothing is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarmd.errors import ConfigError
from swarmd.models.weight_files import read_headers, read_object, weight_files

__all__ = ["ModelShape", "read_shape", "shape_of"]

_LARGEST = 2**40
"""No size of a model is larger; a file that says so is damaged or lies."""
_HEAD = "lm_head.weight"


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder-only language model."""

    parameters: int
    """Tied ones counted once."""
    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_width: int
    context_tokens: int
    is_tied: bool
    """The output layer is the embedding."""

    @property
    def kv_numbers_per_token(self) -> int:
        """Keys and values of all layers for one position."""
        return 2 * self.layers * self.kv_heads * self.head_width

    @property
    def linear_numbers_per_layer(self) -> int:
        """Rows plus columns of a layer's seven linear maps: what a LoRA adapter of rank 1 adds."""
        query, keys = self.heads * self.head_width, self.kv_heads * self.head_width
        return 2 * (self.hidden + query) + 2 * (self.hidden + keys) + 3 * (self.hidden + self.intermediate)


def read_shape(folder: Path) -> ModelShape | None:
    """The shape of the model in a folder; None when its configuration is of a form not known here.

    Raises ConfigError for damaged files.
    """
    shape = shape_of(read_object(folder / "config.json"))
    if shape is None:
        return None
    tensors: dict[str, int] = {}
    for path in weight_files(folder):
        tensors |= {name: header.count for name, header in read_headers(path).items()}
    if shape.is_tied:
        tensors.pop(_HEAD, None)
    return shape if not tensors else _with_parameters(shape, sum(tensors.values()))


def shape_of(config: Mapping[str, Any]) -> ModelShape | None:
    """What a `config.json` says, the number of parameters computed as for Llama and its relatives."""
    nested = config.get("text_config")
    values = {**config, **nested} if isinstance(nested, Mapping) else config
    try:
        hidden = _size(values, "hidden_size", "n_embd", "d_model")
        heads = _size(values, "num_attention_heads", "n_head", "num_heads")
        shape = ModelShape(
            parameters=0,
            vocabulary=_size(values, "vocab_size"),
            hidden=hidden,
            intermediate=_size(values, "intermediate_size", "n_inner", "ffn_dim", default=4 * hidden),
            layers=_size(values, "num_hidden_layers", "n_layer", "num_layers"),
            heads=heads,
            kv_heads=_size(values, "num_key_value_heads", default=heads),
            head_width=_size(values, "head_dim", default=max(1, hidden // heads)),
            context_tokens=_size(values, "max_position_embeddings", "n_positions", "n_ctx"),
            is_tied=bool(values.get("tie_word_embeddings", False)),
        )
    except ConfigError:
        return None
    query, keys = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
    layer = 2 * hidden * query + 2 * hidden * keys + 3 * hidden * shape.intermediate + 2 * hidden
    if values.get("model_type") == "qwen2" or values.get("attention_bias") is True:
        layer += query + 2 * keys
    if values.get("model_type") == "qwen3":
        layer += 2 * shape.head_width
    embeddings = shape.vocabulary * hidden * (1 if shape.is_tied else 2)
    return _with_parameters(shape, embeddings + shape.layers * layer + hidden)


def _with_parameters(shape: ModelShape, parameters: int) -> ModelShape:
    return ModelShape(**{**vars(shape), "parameters": parameters})


def _size(values: Mapping[str, Any], *names: str, default: int = 0) -> int:
    for name in names:
        value = values.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _LARGEST:
            return value
        if value is not None:
            raise ConfigError(f"{name} is {value!r}")
    if not default:
        raise ConfigError(f"there is no {names[0]}")
    return default
