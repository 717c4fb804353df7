"""The optimizer, and its state as plain tensors under the names of the parameters.

`adamw_8bit` keeps Adam's moments in 8 bits, a quarter of their memory (Dettmers et al. 2021, arXiv
2110.02861). It needs `bitsandbytes`, which is imported only when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from swarmd.errors import ConfigError, TrainingError
from swarmd.training.messages import TrainingOptions

__all__ = ["make_optimizer", "optimizer_state", "restore_optimizer"]

Parameters = Mapping[str, torch.nn.Parameter]


def make_optimizer(parameters: Parameters, options: TrainingOptions) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay. Raises ConfigError when its package is not there."""
    kind: Callable[..., torch.optim.Optimizer]
    if options.optimizer == "adamw":
        kind = torch.optim.AdamW
    elif options.optimizer == "adamw_8bit":
        try:
            from bitsandbytes.optim import AdamW8bit
        except ImportError as error:
            raise ConfigError(
                f"training.optimizer adamw_8bit needs the package bitsandbytes, which cannot be imported "
                f"({error}); install swarmd[adam8bit] or set training.optimizer to adamw"
            ) from error
        kind = AdamW8bit
    else:
        raise ConfigError(f"training.optimizer must be adamw or adamw_8bit, got {options.optimizer!r}")
    return kind(
        list(parameters.values()),
        lr=options.learning_rate,
        betas=(options.adam_beta1, options.adam_beta2),
        weight_decay=options.weight_decay,
    )


def optimizer_state(optimizer: torch.optim.Optimizer, parameters: Parameters) -> dict[str, Tensor]:
    """Moments and step counts, as `KEY/PARAMETER`; the live tensors, except what parameters share."""
    state: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        for key, value in optimizer.state.get(parameter, {}).items():
            if not isinstance(value, Tensor):
                state[f"{key}/{name}"] = torch.tensor(value)
            elif key.startswith("qmap"):
                state[f"{key}/{name}"] = value.clone()
            else:
                state[f"{key}/{name}"] = value
    return state


def restore_optimizer(
    optimizer: torch.optim.Optimizer, parameters: Parameters, state: Mapping[str, Tensor]
) -> None:
    """Give the optimizer what `optimizer_state` returned. Raises TrainingError if it is of another kind."""
    has_moments = any(key.startswith("exp_avg/") for key in state)
    is_plain = isinstance(optimizer, torch.optim.AdamW)
    if has_moments != is_plain and any("/" in key for key in state):
        raise TrainingError("the optimizer to restore is another one; set training.optimizer as it was")
    by_parameter: dict[str, dict[str, Tensor]] = {}
    for key, value in state.items():
        kind, _, name = key.partition("/")
        by_parameter.setdefault(name, {})[kind] = value
    for name, parameter in parameters.items():
        optimizer.state[parameter] = {
            key: _restored(value, parameter) for key, value in by_parameter.get(name, {}).items()
        }


def _restored(value: Tensor, parameter: torch.nn.Parameter) -> Tensor | int:
    if value.ndim == 0:
        # Step counts: a number of the 8-bit optimizer, or a tensor that Adam keeps on the CPU.
        return value.clone() if value.is_floating_point() else int(value)
    return value.to(parameter.device, copy=True)
