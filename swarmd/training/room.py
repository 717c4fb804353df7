"""How much the trainer forwards at once when memory is short: half as much after each failure, and, after
a while without one, twice as much again.
"""

from __future__ import annotations

import torch

from swarmd.models.placement import FEWEST_TOKENS_AT_ONCE

__all__ = ["Room", "is_out_of_memory"]

_FIRST_PATIENCE_STEPS = 32
_LONGEST_PATIENCE_STEPS = 1024
# torch tells a refused allocation of the CPU only in words.
_WORDS = ("can't allocate memory", "not enough memory", "out of memory")


class Room:
    """Tokens in one forward, at most, as memory allows. It changes how fast a step is, never its result.

    A step that finds memory short halves it. Other programs come and go, so it is doubled again, up to
    `most_tokens`, after 32 steps in a row that had room; each time that was too early, after twice as many.
    """

    def __init__(self, most_tokens: int) -> None:
        self.tokens = most_tokens
        """In one forward now."""
        self._most_tokens = most_tokens
        self._patience_steps = _FIRST_PATIENCE_STEPS
        self._good_steps = 0
        self._was_doubled = False

    def halve(self) -> bool:
        """Memory was short. False: there is nothing left to halve."""
        self._good_steps = 0
        if self._was_doubled:
            self._patience_steps = min(2 * self._patience_steps, _LONGEST_PATIENCE_STEPS)
            self._was_doubled = False
        if self.tokens <= FEWEST_TOKENS_AT_ONCE:
            return False
        self.tokens = max(FEWEST_TOKENS_AT_ONCE, self.tokens // 2)
        return True

    def note_step(self) -> None:
        """A step is done."""
        self._good_steps += 1
        if self.tokens < self._most_tokens and self._good_steps >= self._patience_steps:
            self.tokens = min(2 * self.tokens, self._most_tokens)
            self._good_steps = 0
            self._was_doubled = True


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory, of a GPU or of the machine, was refused."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)
