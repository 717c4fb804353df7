"""Whether an estimate fits into a machine, and what to do when it does not: one line with numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from swarmd.errors import ConfigError, MemoryShortError
from swarmd.models.machine import Machine
from swarmd.models.memory import HOST, Estimate, Workload
from swarmd.models.placement import FEWEST_TOKENS_AT_ONCE, Placement

__all__ = ["check_fit", "gigabytes", "leanest", "widest"]

NEAR = 0.85
"""From this part of what is free on, a fit is called near."""
_LARGEST_ITEMS = 3

EstimateOf = Callable[[Workload], Estimate]


@dataclass(frozen=True)
class _Room:
    """What there is in one place, or for one process in it."""

    name: str
    process: str | None
    """None: all of them together."""
    place: str
    free_bytes: int
    most_bytes: int
    """What could be free at best, when nothing else ran."""

    def needed(self, estimate: Estimate) -> int:
        return estimate.of(self.process, self.place) if self.process else estimate.at(self.place)


def check_fit(
    model: str, machine: Machine, placement: Placement, workload: Workload, estimate_of: EstimateOf
) -> tuple[str, ...]:
    """Warnings where memory suffices, but barely.

    `estimate_of` estimates another workload for the same model and placement, to find what would help.

    Raises, with numbers and advice in one line, MemoryShortError when it does not suffice now, and
    ConfigError when it never can on this machine.
    """
    estimate = estimate_of(workload)
    warnings = []
    for room in _rooms(machine, placement):
        needed = room.needed(estimate)
        if needed > room.free_bytes:
            never = needed > room.most_bytes
            line = (
                f"{model} needs about {gigabytes(needed)} of {room.name}, and "
                f"{gigabytes(room.most_bytes if never else room.free_bytes)} "
                f"{'is all there is' if never else 'are free'} ({_largest(estimate, room.place)}): "
                f"{_advice(room, workload, estimate_of)}, or set model.check_memory=false to try it anyway"
            )
            raise ConfigError(line) if never else MemoryShortError(line)
        if needed > NEAR * room.free_bytes:
            warnings.append(
                f"{model} needs about {gigabytes(needed)} of the {gigabytes(room.free_bytes)} of {room.name} "
                "that are free: memory may run out"
            )
    return tuple(warnings)


def widest(machine: Machine, placement: Placement, workload: Workload, estimate_of: EstimateOf) -> Workload:
    """The same work with as many tokens at once, halving, as fit with room to spare; else as fit at all.

    Where nothing fits: the fewest.
    """
    choices = [workload]
    while choices[-1].tokens_at_once // 2 >= FEWEST_TOKENS_AT_ONCE:
        choices.append(replace(choices[-1], tokens_at_once=choices[-1].tokens_at_once // 2))
    rooms = list(_rooms(machine, placement))
    for part in (NEAR, 1.0):
        for choice in choices:
            estimate = estimate_of(choice)
            if all(room.needed(estimate) <= part * room.free_bytes for room in rooms):
                return choice
    return choices[-1]


def gigabytes(size_bytes: float) -> str:
    """Bytes as `0.35 GB` or `12.3 GB`."""
    return f"{size_bytes / 1e9:.{1 if size_bytes >= 1e9 else 2}f} GB"


def leanest(workload: Workload) -> Workload:
    """The same work with every setting that saves memory."""
    for _, change in _steps(workload):
        workload = change(workload)
    return workload


def _rooms(machine: Machine, placement: Placement) -> Iterator[_Room]:
    yield _Room("memory", None, HOST, machine.free_bytes, machine.memory_bytes)
    gpus = {gpu.device: gpu for gpu in machine.gpus}
    for process, place in (("trainer", placement.trainer), ("generator", placement.generator)):
        if place.is_gpu:
            gpu = gpus[place.device]
            bound = int(place.memory_share * gpu.total_bytes)
            name = f"the {process}'s part ({place.memory_share:.0%}) of {place.device}"
            # The bound is a setting; only other programs' use of the GPU can change by itself.
            yield _Room(name, process, place.device, min(bound, gpu.free_bytes), bound)


def _largest(estimate: Estimate, place: str) -> str:
    """The processes in a place, each with the largest of what it takes."""
    parts = []
    for need in estimate.needs:
        if need.place != place:
            continue
        items = sorted(need.items, key=lambda item: -item.size_bytes)[:_LARGEST_ITEMS]
        named = ", ".join(f"{item.what} {item.size_bytes / 1e9:.1f}" for item in items)
        parts.append(f"{need.process} {gigabytes(need.size_bytes)}: {named}")
    return "; ".join(parts)


def _advice(room: _Room, workload: Workload, estimate_of: EstimateOf) -> str:
    """Settings that would make it fit: each that does alone, else several together, else none do."""
    steps = list(_steps(workload))
    alone = []
    for setting, change in steps:
        needed = room.needed(estimate_of(change(workload)))
        if needed <= room.free_bytes:
            alone.append(f"--set {setting} ({gigabytes(needed)})")
    if alone:
        return f"{' or '.join(alone)}, or choose a smaller model"
    together, changed = [], workload
    for setting, change in steps:
        before = room.needed(estimate_of(changed))
        after = room.needed(estimate_of(change(changed)))
        if after < before:
            together.append(f"--set {setting}")
            changed = change(changed)
        if after <= room.free_bytes:
            return f"{' '.join(together)} ({gigabytes(after)}), or choose a smaller model"
    return "choose a smaller model; no setting makes this one fit"


def _steps(workload: Workload) -> Iterator[tuple[str, Callable[[Workload], Workload]]]:
    """What lowers the need, mildest first."""
    if workload.kv_cache_bytes > 1 << 28:
        yield f"generation.kv_cache_bytes={1 << 28}", lambda now: replace(now, kv_cache_bytes=1 << 28)
    if workload.tokens_at_once > 1024:
        yield "training.tokens_at_once=1024", lambda now: replace(now, tokens_at_once=1024)
    if not workload.is_recomputed:
        yield "training.gradient_checkpointing=true", lambda now: replace(now, is_recomputed=True)
    if workload.optimizer == "adamw":
        yield "training.optimizer=adamw_8bit", lambda now: replace(now, optimizer="adamw_8bit")
    if not workload.lora_rank:
        yield "training.lora_rank=16", lambda now: replace(now, lora_rank=16)
