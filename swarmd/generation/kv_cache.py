"""Keys and values of the completions being decoded, in memory that is allocated once.

transformers' own cache copies everything at each new token and cannot lose a row. Here a new token
is written in place, and a finished row gives its place to the last living one, so that the living
rows are always the first ones and the model computes nothing else.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import Cache, DynamicLayer

__all__ = ["RowCache"]


class RowCache(Cache):  # type: ignore[misc] # transformers is not typed.
    """A transformers cache of `rows` completions that start from the prompts of `prefilled`.

    Args:
        prefilled: cache of one row per prompt, all of the same padded length.
        copies_of_prompt: for each prompt, how many completions continue it.
        new_tokens: how many positions are added at most.
    """

    def __init__(self, prefilled: DynamicCache, copies_of_prompt: Tensor, new_tokens: int) -> None:
        super().__init__(
            layers=[
                _RowLayer(layer.keys, layer.values, copies_of_prompt, new_tokens)
                for layer in prefilled.layers
            ]
        )

    def keep(self, moved_to: Tensor, moved_from: Tensor, rows: int) -> None:
        """Copy rows `moved_from` over the finished rows `moved_to` and forget all beyond `rows`."""
        for layer in self.layers:
            layer.keep(moved_to, moved_from, rows)


class _RowLayer(DynamicLayer):  # type: ignore[misc] # transformers is not typed.
    """Keys and values of one layer, rows x heads x positions x width each."""

    def __init__(
        self, keys_PHTW: Tensor, values_PHTW: Tensor, copies_of_prompt: Tensor, new_tokens: int
    ) -> None:
        super().__init__()
        self._length = keys_PHTW.shape[-2]
        self._rows = int(copies_of_prompt.sum())
        self._keys = self._allocate(keys_PHTW, copies_of_prompt, new_tokens)
        self._values = self._allocate(values_PHTW, copies_of_prompt, new_tokens)
        self.dtype, self.device = keys_PHTW.dtype, keys_PHTW.device
        self.is_initialized = True
        self._show()

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append one position per row; returns all positions of the living rows."""
        end = self._length + key_states.shape[-2]
        self._keys[: self._rows, :, self._length : end] = key_states
        self._values[: self._rows, :, self._length : end] = value_states
        self._length = end
        return self._show()

    def keep(self, moved_to: Tensor, moved_from: Tensor, rows: int) -> None:
        if len(moved_to):
            for stored in (self._keys, self._values):
                stored[moved_to, :, : self._length] = stored[moved_from, :, : self._length]
        self._rows = rows
        self._show()

    def _show(self) -> tuple[Tensor, Tensor]:
        self.keys = self._keys[: self._rows, :, : self._length]
        self.values = self._values[: self._rows, :, : self._length]
        return self.keys, self.values

    def _allocate(self, prompts_PHTW: Tensor, copies_of_prompt: Tensor, new_tokens: int) -> Tensor:
        _, heads, length, width = prompts_PHTW.shape
        stored = prompts_PHTW.new_empty((self._rows, heads, length + new_tokens, width))
        stored[:, :, :length] = prompts_PHTW.repeat_interleave(copies_of_prompt, dim=0)
        return stored
