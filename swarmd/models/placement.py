"""Where generator and trainer compute, in which number format, and how much of a GPU each may take.

A pure function of what the machine has and what was asked for, so that both processes get one answer,
and every answer has its reason in words. Two GPUs: each its own. One: both, with a share each. None that
works: the CPU. A device that was named is used or refused, never replaced.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarmd.errors import ConfigError
from swarmd.models.machine import Gpu, Machine

__all__ = [
    "DTYPE_BYTES",
    "FEWEST_TOKENS_AT_ONCE",
    "MOST_TOKENS_AT_ONCE",
    "Place",
    "Placement",
    "Wish",
    "place",
]

MOST_TOKENS_AT_ONCE = 4096
"""More in one forward make a step no faster."""
FEWEST_TOKENS_AT_ONCE = 256
"""Fewer save nothing: below it a slice is no longer what takes the memory."""
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
GENERATOR_SHARE = 0.4
TRAINER_SHARE = 0.5
"""Of what is free on a GPU that both use. What is left belongs to the driver and to rounding."""
OWN_SHARE = 0.9
"""Of what is free on a GPU of its own."""
SMALL_PARAMETERS = 50_000_000
"""Below it a model decodes in float32 on a CPU: exact, and as fast as in bfloat16 (measured with 13 million;
with 130 million bfloat16 was 1.2 to 1.4 times as fast). A training step gained nothing there.
"""
_SMALLEST_CACHE_BYTES = 2e9


@dataclass(frozen=True)
class Wish:
    """What the configuration asks for, for one of the two."""

    key: str
    """The key that names the device, for messages: model.device, generation.device, training.device."""
    device: str
    """auto, cpu, cuda (any GPU that works) or cuda:N."""
    memory_share: float = 0.0
    """Of the GPU's whole memory. 0: chosen."""


@dataclass(frozen=True)
class Place:
    """Where one of them computes."""

    device: str
    """cpu or cuda:N."""
    dtype: str
    """float32, bfloat16 or float16."""
    memory_share: float
    """Largest part of the GPU's whole memory that it may take; 1 on a CPU, which knows no such bound."""
    why: str
    """The reasons of device and format, in words."""
    needs_bytes: int = 0
    """Memory that its process is estimated to take, of machine and GPU together. 0: not estimated."""

    @property
    def is_gpu(self) -> bool:
        """Whether that is a GPU."""
        return self.device != "cpu"


@dataclass(frozen=True)
class Placement:
    """Where both compute."""

    generator: Place
    trainer: Place
    warnings: tuple[str, ...] = ()
    """What a person should know before the model is loaded."""
    tokens_at_once: int = MOST_TOKENS_AT_ONCE
    """In one forward of the trainer."""

    @property
    def is_shared(self) -> bool:
        """Whether both are on one GPU."""
        return self.generator.is_gpu and self.generator.device == self.trainer.device


@dataclass(frozen=True)
class _Choice:
    device: str
    why: str


def place(machine: Machine, generator: Wish, trainer: Wish, dtype: str, parameters: int) -> Placement:
    """Choose for a model of so many `parameters`; `dtype` is auto or the format for both.

    Raises ConfigError when a named device does not exist or does not work, or shares make no sense.
    """
    choices = _choose_devices(machine, (generator, trainer), parameters)
    is_shared = choices[0].device == choices[1].device
    gpus = {gpu.device: gpu for gpu in machine.gpus}
    places = []
    for wish, choice, shared_part, is_trainer in (
        (generator, choices[0], GENERATOR_SHARE, False),
        (trainer, choices[1], TRAINER_SHARE, True),
    ):
        gpu = gpus.get(choice.device)
        chosen, why = _choose_dtype(machine, gpu, dtype, parameters, is_trainer)
        part = shared_part if is_shared else OWN_SHARE
        share = 1.0 if gpu is None else wish.memory_share or _of_whole(gpu, part)
        places.append(Place(choice.device, chosen, share, f"{choice.why}; {why}"))
    placement = Placement(places[0], places[1])
    _check_shares(placement, generator, trainer)
    return placement


def _choose_devices(machine: Machine, wishes: tuple[Wish, Wish], parameters: int) -> tuple[_Choice, _Choice]:
    """Device and reason for generator and trainer."""
    named = [_named_device(machine, wish) for wish in wishes]
    working = machine.working_gpus
    if not any(named) and working:
        return _two_choices(working, parameters)
    choices = []
    for wish, device in zip(wishes, named, strict=True):
        if device:
            choices.append(_Choice(device, f"{wish.key} says so"))
        elif working:
            left = [gpu for gpu in working if gpu.device not in named]
            why = "the GPU with most free memory that is left" if left else "the only GPU that works"
            choices.append(_Choice((left or working)[0].device, f"{(left or working)[0].name}, {why}"))
        else:
            choices.append(_Choice("cpu", _why_no_gpu(machine)))
    return choices[0], choices[1]


def _two_choices(working: tuple[Gpu, ...], parameters: int) -> tuple[_Choice, _Choice]:
    """Among GPUs that work, where nothing was named."""
    first, *rest = working
    # Weights in 16 bits with something around them, and a cache.
    generator_bytes = 2.5 * parameters + _SMALLEST_CACHE_BYTES
    if rest and rest[0].free_bytes * OWN_SHARE > generator_bytes:
        own = _Choice(rest[0].device, f"{rest[0].name}, a GPU of its own")
        return own, _Choice(first.device, f"{first.name}, the GPU with most free memory")
    small = f", since {rest[0].device} has too little free memory" if rest else ""
    shared = _Choice(first.device, f"{first.name}, one GPU for both{small}")
    return shared, shared


def _named_device(machine: Machine, wish: Wish) -> str:
    """The device that the wish names; empty when the choice is open."""
    if wish.device == "cpu":
        return "cpu"
    if wish.device == "cuda":
        if not machine.working_gpus:
            raise ConfigError(f"{wish.key} is cuda, but {_why_no_gpu(machine)}; use auto or cpu")
        return ""
    if not wish.device.startswith("cuda:"):
        return ""
    known = {gpu.device: gpu for gpu in machine.gpus}
    gpu = known.get(wish.device)
    if gpu is None:
        there = f"there is {', '.join(known)}" if known else _why_no_gpu(machine)
        raise ConfigError(f"{wish.key} is {wish.device}, but {there}; use auto or cpu")
    if gpu.fault:
        raise ConfigError(f"{wish.key} is {wish.device} but it does not work ({gpu.fault}); use auto or cpu")
    return gpu.device


def _why_no_gpu(machine: Machine) -> str:
    if machine.gpu_fault:
        return f"the GPUs cannot be used ({machine.gpu_fault})"
    if machine.gpus:
        return f"the GPU does not work ({machine.gpus[0].fault})"
    return "no GPU is here"


def _choose_dtype(
    machine: Machine, gpu: Gpu | None, wanted: str, parameters: int, is_trainer: bool
) -> tuple[str, str]:
    """Number format and why."""
    if gpu is None:
        if wanted == "float16" and is_trainer:
            return "float32", "float16 gradients underflow, so float32"
        if wanted != "auto":
            return wanted, f"model.dtype is {wanted}"
        if is_trainer:
            return "float32", "trained in float32 on a CPU"
        if parameters < SMALL_PARAMETERS:
            return "float32", "a small model, so float32"
        if machine.has_bfloat16:
            return "bfloat16", "the processor computes in bfloat16"
        return "float32", "the processor has no bfloat16, so float32"
    if wanted == "float32":
        return "float32", "model.dtype is float32"
    if gpu.has_bfloat16 and wanted in ("auto", "bfloat16"):
        return "bfloat16", "the GPU computes in bfloat16"
    lacks = "" if gpu.has_bfloat16 else "the GPU has no bfloat16, "
    if is_trainer:
        return "float32", f"{lacks}float16 gradients underflow, so float32"
    if wanted == "float16" or (wanted == "auto" and gpu.has_float16):
        return "float16", f"{lacks}so float16" if lacks else "model.dtype is float16"
    return "float32", f"{lacks}so float32"


def _of_whole(gpu: Gpu, share_of_free: float) -> float:
    """A share of the free memory as one of the whole, which is how torch and vLLM count."""
    return round(share_of_free * gpu.free_bytes / max(1, gpu.total_bytes), 4)


def _check_shares(placement: Placement, generator: Wish, trainer: Wish) -> None:
    total = placement.generator.memory_share + placement.trainer.memory_share
    if placement.is_shared and total > 1 and (generator.memory_share or trainer.memory_share):
        raise ConfigError(
            f"generator and trainer share {placement.trainer.device}, and generation.memory_share "
            f"({placement.generator.memory_share:g}) and training.memory_share "
            f"({placement.trainer.memory_share:g}) make more than 1"
        )
