"""Which engine decodes. Engines are imported only when chosen: each brings a heavy library."""

from __future__ import annotations

from swarmd.errors import ConfigError
from swarmd.generation.generator import Engine, OpenWeights
from swarmd.generation.messages import GeneratorSettings
from swarmd.generation.vllm_choice import find_vllm, why_not, why_not_on
from swarmd.models.device import choose_compute

__all__ = ["open_engine"]


def open_engine(settings: GeneratorSettings, open_weights: OpenWeights) -> Engine:
    """Load the model into the engine that `settings.engine` names. `auto` is vLLM where it is installed
    in a supported version for this device, else transformers; the engine's note says why.

    Raises:
        ConfigError: the engine is unknown or cannot be used here, or the device does not work.
        GenerationError: the model cannot be loaded.
    """
    if settings.engine not in ("auto", "vllm", "transformers"):
        raise ConfigError(f"generation.engine must be auto, vllm or transformers, got {settings.engine!r}")
    note = ""
    if settings.engine == "auto":
        installed = find_vllm()
        reason = why_not(installed)
        if reason is None and installed is not None:
            reason = why_not_on(installed, choose_compute(settings.device, settings.dtype).device.type)
        note = f"transformers samples: {reason}" if reason else ""
    if settings.engine == "transformers" or note:
        from swarmd.generation.transformers import TransformersEngine

        return TransformersEngine.load(settings, open_weights, note)
    from swarmd.generation.vllm import VllmEngine

    return VllmEngine.load(settings, open_weights)
