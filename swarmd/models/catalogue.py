"""The models swarmd knows by name. Imports nothing heavy: the command line reads it at once.

A name stands for a folder in this package or for a repository on the Hugging Face hub. Anything else
can still be used by its path or hub id.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from swarmd.models.shape import ModelShape, shape_of

__all__ = ["CATALOGUE", "KnownModel", "nearest_names"]


@dataclass(frozen=True)
class KnownModel:
    """One entry. Exactly one of `folder` and `hub_id` is set."""

    name: str
    parameters: str
    """About how many, for a person."""
    manifest: str
    """Built-in manifest that fits the model."""
    description: str
    folder: str | None = None
    """Folder beside this module."""
    hub_id: str | None = None
    """Repository on the hub."""
    shape: ModelShape | None = None
    """Of a model on the hub, so that its memory is estimated before it is fetched."""


def _shape(
    vocabulary: int, hidden: int, intermediate: int, layers: int, heads: tuple[int, int, int], **more: object
) -> ModelShape:
    """Of a tied model; `heads` are those of queries, those of keys, and their width."""
    values = {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": heads[2],
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": True,
    }
    shape = shape_of(values | more)
    assert shape is not None
    return shape


def _hub(name: str, hub_id: str, shape: ModelShape, description: str) -> KnownModel:
    parameters = f"{shape.parameters / 1e9:.1f} B"
    return KnownModel(name, parameters, "sapo-nine", description, hub_id=hub_id, shape=shape)


def _family(name: str, hub_id: str, shape: ModelShape) -> tuple[KnownModel, KnownModel]:
    """A base model, and the same one tuned to follow instructions."""
    return (
        _hub(name, hub_id, shape, "base model"),
        _hub(f"{name}-instruct", f"{hub_id}-Instruct", shape, "instruction-tuned"),
    )


def _qwen3(name: str, hub_id: str, shape: ModelShape) -> tuple[KnownModel, KnownModel]:
    thinks = "instruction-tuned, thinks before it answers"
    return _hub(name, hub_id, shape, thinks), _hub(f"{name}-base", f"{hub_id}-Base", shape, "base model")


_QWEN2, _QWEN3, _LLAMA = {"model_type": "qwen2"}, {"model_type": "qwen3"}, {"max_position_embeddings": 8192}

_MODELS = (
    KnownModel(
        "tiny",
        "0.9 M",
        "tiny",
        "learns in minutes on a CPU; to try and test swarmd, not to be useful",
        "tiny",
    ),
    KnownModel(
        "tiny-weak",
        "0.9 M",
        "tiny",
        "almost never right at first, so that sharing shows; not useful either",
        "tiny_weak",
    ),
    *_family(
        "smollm2-135m",
        "HuggingFaceTB/SmolLM2-135M",
        _shape(49_152, 576, 1536, 30, (9, 3, 64), **_LLAMA),
    ),
    *_family(
        "smollm2-360m",
        "HuggingFaceTB/SmolLM2-360M",
        _shape(49_152, 960, 2560, 32, (15, 5, 64), **_LLAMA),
    ),
    *_family("qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B", _shape(151_936, 896, 4864, 24, (14, 2, 64), **_QWEN2)),
    *_qwen3("qwen3-0.6b", "Qwen/Qwen3-0.6B", _shape(151_936, 1024, 3072, 28, (16, 8, 128), **_QWEN3)),
    *_family("qwen2.5-1.5b", "Qwen/Qwen2.5-1.5B", _shape(151_936, 1536, 8960, 28, (12, 2, 128), **_QWEN2)),
    *_family(
        "smollm2-1.7b",
        "HuggingFaceTB/SmolLM2-1.7B",
        _shape(49_152, 2048, 8192, 24, (32, 32, 64), **_LLAMA),
    ),
    *_qwen3("qwen3-1.7b", "Qwen/Qwen3-1.7B", _shape(151_936, 2048, 6144, 28, (16, 8, 128), **_QWEN3)),
)

CATALOGUE = {model.name: model for model in _MODELS}
"""By name, bundled ones first."""


def nearest_names(name: str) -> tuple[str, ...]:
    """Known names that look like `name`, best first, at most three."""
    return tuple(get_close_matches(name.lower().rpartition("/")[2], CATALOGUE, n=3, cutoff=0.5))
