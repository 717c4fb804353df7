"""LoRA: only small matrices beside the linear layers are trained, and published merged into them.

Hu et al. 2021, arXiv 2106.09685: W x + alpha / rank * B A x, with B zero at the start. The generator
never learns of adapters: it gets whole weights under the names of the model. Needs `peft`, which is
imported only when adapters are asked for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from swarmd.errors import ConfigError

__all__ = ["add_adapters", "merged_weights"]

_ADAPTER = "default"


def add_adapters(model: Any, rank: int, alpha: float, frozen_dtype: torch.dtype, seed: int) -> None:
    """Freeze `model`, in `frozen_dtype`, and add float32 adapters to all linear layers of its body.

    Same seed, same adapters. Raises ConfigError when peft is not installed.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ConfigError(
            f"training.lora_rank needs the package peft, which cannot be imported ({error}); "
            "install swarmd[lora] or set training.lora_rank to 0"
        ) from error
    head = model.get_output_embeddings()
    linear = {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not head
    }
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        parameter.data = parameter.data.to(frozen_dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(
            LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules=sorted(linear)),
            model,
            adapter_name=_ADAPTER,
        )
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def merged_weights(model: Any) -> dict[str, Tensor]:
    """All weights of the model under the names they have without adapters; the model stays as it is.

    Without adapters these are the live parameters, not copies. Tied parameters appear once.
    """
    weights = {
        name.replace(".base_layer.", "."): parameter.detach()
        for name, parameter in model.named_parameters()
        if ".lora_" not in name
    }
    with torch.no_grad():
        for name, module in model.named_modules():
            if hasattr(module, "get_delta_weight"):
                weight = weights[f"{name}.weight"]
                weights[f"{name}.weight"] = weight.float() + module.get_delta_weight(_ADAPTER).float()
    return weights
