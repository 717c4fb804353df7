"""Where each tensor lies inside a slot of the weight channel.

The writer plans the layout once from the tensors it will publish and writes it beside them; the
reader follows it without knowing the model. Tensors that share memory, as tied embeddings do, are
stored once and found under each of their names.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import torch

from swarmd.errors import WeightChannelError

__all__ = ["ALIGNMENT_BYTES", "DTYPES", "Layout", "TensorPlace", "plan_layout", "unpack"]

ALIGNMENT_BYTES = 64
"""Every tensor starts at a multiple of this, so that sums over 8-byte words never cross tensors."""
DTYPES = {
    name: getattr(torch, name)
    for name in (
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint8",
        "bool",
    )
}
"""Element types the channel can carry, by the name that the layout uses."""


class TensorPlace(msgspec.Struct, frozen=True):
    """One stored tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset_bytes: int
    """From the start of the slot."""
    size_bytes: int
    """Without padding."""


class Layout(msgspec.Struct, frozen=True):
    """All tensors of a slot."""

    places: tuple[TensorPlace, ...]
    aliases: dict[str, str]
    """Further name of a tensor → the name it is stored under."""
    slot_bytes: int
    """Length of a slot, padding included; at least one word."""

    def check(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Refuse tensors that do not fit this layout exactly.

        Raises:
            WeightChannelError: names, shapes, dtypes or shared memory differ.
        """
        expected = {place.name for place in self.places} | set(self.aliases)
        if different := expected.symmetric_difference(tensors):
            raise WeightChannelError(
                f"the weights have other tensors than the channel: {sorted(different)[0]}"
            )
        for place in self.places:
            tensor = tensors[place.name]
            if tuple(tensor.shape) != place.shape or _dtype_name(place.name, tensor) != place.dtype:
                raise WeightChannelError(
                    f"tensor {place.name} is {_dtype_name(place.name, tensor)}{list(tensor.shape)}, "
                    f"expected {place.dtype}{list(place.shape)}"
                )
        for name, stored_as in self.aliases.items():
            if _memory_of(tensors[name]) != _memory_of(tensors[stored_as]):
                raise WeightChannelError(f"tensor {name} no longer shares its memory with {stored_as}")


def plan_layout(tensors: Mapping[str, torch.Tensor]) -> Layout:
    """Lay out `tensors` in the order given.

    Raises:
        WeightChannelError: there are none, or one has an element type that cannot be stored.
    """
    if not tensors:
        raise WeightChannelError("there are no weights to publish")
    places: list[TensorPlace] = []
    aliases: dict[str, str] = {}
    seen: dict[tuple[object, ...], str] = {}
    offset = 0
    for name, tensor in tensors.items():
        stored_as = seen.setdefault(_memory_of(tensor), name) if tensor.numel() else name
        if stored_as != name:
            aliases[name] = stored_as
            continue
        size = tensor.numel() * tensor.element_size()
        places.append(
            TensorPlace(
                name=name,
                dtype=_dtype_name(name, tensor),
                shape=tuple(tensor.shape),
                offset_bytes=offset,
                size_bytes=size,
            )
        )
        offset += -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return Layout(places=tuple(places), aliases=aliases, slot_bytes=max(offset, ALIGNMENT_BYTES))


def unpack(layout: Layout, octets: torch.Tensor) -> dict[str, torch.Tensor]:
    """The tensors of a slot as views of its bytes, a flat uint8 tensor on any device."""
    tensors = {}
    for place in layout.places:
        flat = octets[place.offset_bytes : place.offset_bytes + place.size_bytes]
        tensors[place.name] = flat.view(DTYPES[place.dtype]).reshape(place.shape)
    return tensors | {name: tensors[stored_as] for name, stored_as in layout.aliases.items()}


def _memory_of(tensor: torch.Tensor) -> tuple[object, ...]:
    return (tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


def _dtype_name(name: str, tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise WeightChannelError(f"tensor {name} has element type {dtype}, which the channel cannot carry")
    return dtype
