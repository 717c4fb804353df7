"""The models swarmd knows by name. Imports nothing heavy: the command line reads it at once.

A name stands for a folder in this package or for a repository on the Hugging Face hub. Anything else
can still be used by its path or hub id.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

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


def _hub(name: str, parameters: str, hub_id: str, description: str) -> KnownModel:
    return KnownModel(name, parameters, "sapo-nine", description, hub_id=hub_id)


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
    _hub("qwen2.5-0.5b", "0.5 B", "Qwen/Qwen2.5-0.5B", "base model"),
    _hub("qwen2.5-0.5b-instruct", "0.5 B", "Qwen/Qwen2.5-0.5B-Instruct", "instruction-tuned"),
    _hub("qwen2.5-1.5b", "1.5 B", "Qwen/Qwen2.5-1.5B", "base model"),
    _hub("qwen2.5-1.5b-instruct", "1.5 B", "Qwen/Qwen2.5-1.5B-Instruct", "instruction-tuned"),
    _hub("qwen3-0.6b", "0.6 B", "Qwen/Qwen3-0.6B", "instruction-tuned, thinks before it answers"),
    _hub("qwen3-1.7b", "1.7 B", "Qwen/Qwen3-1.7B", "instruction-tuned, thinks before it answers"),
    _hub("smollm2-135m", "0.1 B", "HuggingFaceTB/SmolLM2-135M-Instruct", "instruction-tuned"),
    _hub("smollm2-360m", "0.4 B", "HuggingFaceTB/SmolLM2-360M-Instruct", "instruction-tuned"),
)

CATALOGUE = {model.name: model for model in _MODELS}
"""By name, bundled ones first."""


def nearest_names(name: str) -> tuple[str, ...]:
    """Known names that look like `name`, best first, at most three."""
    return tuple(get_close_matches(name.lower().rpartition("/")[2], CATALOGUE, n=3, cutoff=0.5))
