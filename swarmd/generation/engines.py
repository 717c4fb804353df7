"""Which engine decodes. Engines are imported only when chosen: each brings a heavy library."""

from __future__ import annotations

from swarmd.errors import ConfigError
from swarmd.generation.generator import Engine, OpenWeights
from swarmd.generation.messages import GeneratorSettings

__all__ = ["open_engine"]


def open_engine(settings: GeneratorSettings, open_weights: OpenWeights) -> Engine:
    """Load the model into the engine that `settings.engine` names; `auto` is transformers.

    Raises:
        ConfigError: the engine is unknown or not part of this version, or the device does not work.
        GenerationError: the model cannot be loaded.
    """
    if settings.engine in ("auto", "transformers"):
        from swarmd.generation.transformers import TransformersEngine

        return TransformersEngine.load(settings, open_weights)
    if settings.engine == "vllm":
        raise ConfigError(
            "generation.engine is vllm, which this version of swarmd does not have; use auto or transformers"
        )
    raise ConfigError(f"generation.engine must be auto or transformers, got {settings.engine!r}")
