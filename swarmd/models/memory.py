"""How much memory a node's processes need for a model, before anything is loaded.

Pure arithmetic on the model's shape and the settings that matter. Weights, gradients and optimizer are
exact; activations follow from what Qwen- and Llama-like layers keep for the backward pass in float32
(measured: 4 x intermediate + 12.5 x hidden numbers a token and layer, 2.7 x hidden when they are
computed again); what a process takes without any model was measured too. Good to about a fifth.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from swarmd.models.placement import DTYPE_BYTES, Place, Placement
from swarmd.models.shape import ModelShape

__all__ = ["HOST", "Estimate", "Item", "Need", "Workload", "estimate_memory", "usual_cache_bytes"]

HOST = "cpu"
"""The machine's own memory, as a place beside GPUs."""

_MB = 1_000_000
_TORCH_BYTES = 400 * _MB
"""A process with torch and transformers loaded, with the libraries that it shares with others."""
_CUDA_HOST_BYTES = 1500 * _MB
_CUDA_CONTEXT_BYTES = 600 * _MB
"""Further, with a GPU: in the machine's memory, and on the GPU."""
_VLLM_BYTES = 1500 * _MB
"""vLLM's three processes together."""
_VLLM_WORK_BYTES = 300 * _MB
_DAEMON_BYTES = 80 * _MB
_NETWORK_BYTES = 200 * _MB
"""Further, when it is not alone: hivemind, and p2pd."""
_VERIFIER_BYTES = 150 * _MB
_CPU_BATCH_BYTES = 1 << 30
"""The transformers engine decodes on a CPU with so much at once."""
_LOGIT_BYTES_PER_ROW = 32
_LARGEST_LOGITS = 1 << 26
"""Numbers: more are computed in parts."""
_LOGIT_COPIES = 3
"""Logits, their gradient, and one in between."""
_CHANNEL_SLOTS = 2
_CACHE_SEQUENCES = 64


@dataclass(frozen=True)
class Workload:
    """What the processes do, as far as it takes memory."""

    engine: str
    """transformers or vllm."""
    rows: int
    """Completions that are decoded at once."""
    row_tokens: int
    """Tokens of a prompt and its completion."""
    tokens_at_once: int
    """Tokens in one forward of the trainer."""
    kv_cache_bytes: int = 0
    """vLLM's cache; 0: the usual one."""
    optimizer: str = "adamw"
    lora_rank: int = 0
    is_recomputed: bool = False
    """Gradient checkpointing."""
    has_reference: bool = False
    """The trainer holds a second copy of the start weights, for a KL penalty."""
    verifiers: int = 1
    is_isolated: bool = False


@dataclass(frozen=True)
class Item:
    """One thing that takes memory."""

    what: str
    size_bytes: int


@dataclass(frozen=True)
class Need:
    """What one process takes in one place."""

    process: str
    place: str
    """`HOST` or cuda:N."""
    items: tuple[Item, ...]

    @property
    def size_bytes(self) -> int:
        """All of it."""
        return sum(item.size_bytes for item in self.items)


@dataclass(frozen=True)
class Estimate:
    """What a node takes, process by process."""

    needs: tuple[Need, ...]

    def at(self, place: str) -> int:
        """Bytes in one place, all processes together."""
        return sum(need.size_bytes for need in self.needs if need.place == place)

    def of(self, process: str, place: str | None = None) -> int:
        """Bytes of one process, in one place or in all."""
        return sum(
            need.size_bytes for need in self.needs if need.process == process and place in (None, need.place)
        )


def estimate_memory(shape: ModelShape, placement: Placement, workload: Workload) -> Estimate:
    """What trainer, generator and the rest of the node take with this model."""
    published_bytes = shape.parameters * DTYPE_BYTES[placement.generator.dtype]
    trainer = _trainer_items(shape, placement, workload, published_bytes)
    generator = _generator_items(shape, placement.generator, workload, published_bytes)
    channel = Item("weight channel", _CHANNEL_SLOTS * published_bytes)
    needs = [
        *_split("trainer", placement.trainer, trainer, (channel,), _TORCH_BYTES),
        *_split(
            "generator",
            placement.generator,
            generator,
            (),
            _VLLM_BYTES if workload.engine == "vllm" else _TORCH_BYTES,
        ),
        Need(
            "others",
            HOST,
            (
                Item("daemon", _DAEMON_BYTES + (0 if workload.is_isolated else _NETWORK_BYTES)),
                Item("verifiers", workload.verifiers * _VERIFIER_BYTES),
            ),
        ),
    ]
    return Estimate(tuple(needs))


def usual_cache_bytes(token_bytes: int, context_tokens: int, room_bytes: int) -> int:
    """Size of vLLM's key-value cache when none is set: 64 completions of full context, if there is room."""
    return min(_CACHE_SEQUENCES * context_tokens * token_bytes, room_bytes)


def _split(
    process: str, place: Place, items: Iterable[Item], on_host: tuple[Item, ...], program_bytes: int
) -> list[Need]:
    """What a process takes on its device and, where that is a GPU, what remains on the host."""
    if not place.is_gpu:
        return [Need(process, HOST, (Item("program", program_bytes), *items, *on_host))]
    program = Item("program", program_bytes + _CUDA_HOST_BYTES)
    return [
        Need(process, place.device, (Item("CUDA", _CUDA_CONTEXT_BYTES), *items)),
        Need(process, HOST, (program, *on_host)),
    ]


def _trainer_items(
    shape: ModelShape, placement: Placement, workload: Workload, published_bytes: int
) -> list[Item]:
    place, parameters = placement.trainer, shape.parameters
    trained, frozen_bytes = parameters, 0
    if workload.lora_rank:
        trained = workload.lora_rank * shape.layers * shape.linear_numbers_per_layer
        frozen_bytes = parameters * DTYPE_BYTES[place.dtype]
    moments = 8 if workload.optimizer == "adamw" else 2.1
    items = [
        Item("weights", 4 * trained + frozen_bytes),
        Item("gradients", 4 * trained),
        # On a GPU all parameters are updated at once, with one of them in between.
        Item("optimizer", int(moments * trained) + (4 * trained if place.is_gpu else 0)),
        Item("activations", _activation_bytes(shape, place, workload)),
    ]
    if workload.lora_rank:
        items.append(Item("merged weights", 4 * parameters))
    if placement.generator.dtype != "float32":
        items.append(Item("weights to publish", published_bytes))
    if workload.has_reference:
        items.append(Item("start weights", 4 * parameters))
    return items


def _activation_bytes(shape: ModelShape, place: Place, workload: Workload) -> int:
    """What the forward keeps for the backward, and the largest logits."""
    whole_layer = 4 * shape.intermediate + 12.5 * shape.hidden
    if place.dtype != "float32":
        whole_layer *= 0.75  # Some of it in 16 bits.
    kept = whole_layer * shape.layers
    if workload.is_recomputed:
        kept = 2.7 * shape.hidden * shape.layers + whole_layer
    logits = min(workload.tokens_at_once * shape.vocabulary, _LARGEST_LOGITS)
    return int(4 * (kept * workload.tokens_at_once + _LOGIT_COPIES * logits))


def _generator_items(shape: ModelShape, place: Place, workload: Workload, published_bytes: int) -> list[Item]:
    dtype_bytes = DTYPE_BYTES[place.dtype]
    token_bytes = shape.kv_numbers_per_token * dtype_bytes
    items = [
        Item("weights", shape.parameters * dtype_bytes),
        # The newest ones are read as a whole before they replace the old.
        Item("new weights", published_bytes),
    ]
    if workload.engine == "vllm":
        room = _CPU_BATCH_BYTES
        usual = usual_cache_bytes(token_bytes, shape.context_tokens, room)
        items += [Item("cache", workload.kv_cache_bytes or usual), Item("work", _VLLM_WORK_BYTES)]
        if shape.is_tied and not place.is_gpu:
            items.append(Item("packed output layer", shape.vocabulary * shape.hidden * dtype_bytes))
        return items
    batch = workload.rows * (workload.row_tokens * token_bytes + shape.vocabulary * _LOGIT_BYTES_PER_ROW)
    return [*items, Item("cache", min(batch, _CPU_BATCH_BYTES))]
