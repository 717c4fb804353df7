"""What vLLM calls in each of its processes, through the entry point `vllm.general_plugins`: makes
swarmd's weight channel known there. A vLLM of another version is left as it is.
"""

from __future__ import annotations

from swarmd.generation.vllm_choice import find_vllm, why_not
from swarmd.weights.channel import attach

__all__ = ["register"]


def register() -> None:
    """Add the weight channel to vLLM's weight-transfer registry. May be called again."""
    if why_not(find_vllm()) is not None:
        return
    from swarmd.generation import vllm_api

    vllm_api.register(attach)
