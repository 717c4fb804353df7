"""Makes the bundled models: teaches a randomly initialised one the form of the answers.

Supervised learning on generated questions, with a loss on the answers only. Counted in steps, not in
seconds, and seeded, so that the same call gives an equivalent model on any machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional
from transformers import Qwen2ForCausalLM, Qwen2Tokenizer

from swarmd.models.corpus import Example
from swarmd.models.vocabulary import ANSWER_MARK, QUESTION_MARK

__all__ = ["Phase", "Progress", "teach"]

_WEIGHT_DECAY = 0.01
_BETAS = (0.9, 0.98)
_PASSES = 4
"""A batch runs in this many parts of similar length, since padding would double its cost."""


@dataclass(frozen=True)
class Phase:
    """Part of a warm-start: so many optimizer steps of AdamW at this learning rate.

    The rate rises over `warmup_steps` and, with `decay`, falls linearly to zero in the second half.
    """

    steps: int
    learning_rate: float
    warmup_steps: int = 20
    decay: bool = True

    def rate(self, step: int) -> float:
        """Learning rate of step 0, 1, ... of the phase."""
        rising = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        falling = min(1.0, 2 * (self.steps - step) / self.steps) if self.decay else 1.0
        return self.learning_rate * min(rising, falling)


@dataclass(frozen=True)
class Progress:
    """How far a phase is. `loss` is the mean over answer tokens, in nats."""

    step: int
    steps: int
    loss: float


def teach(
    model: Qwen2ForCausalLM,
    tokenizer: Qwen2Tokenizer,
    batches: Iterable[Sequence[Example]],
    phase: Phase,
    on_step: Callable[[Progress], None],
) -> None:
    """Change `model` in place by `phase.steps` steps, one batch each.

    Raises ValueError when `batches` ends too early.
    """
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=phase.learning_rate, betas=_BETAS, weight_decay=_WEIGHT_DECAY
    )
    model.train()
    supply = iter(batches)
    for step in range(phase.steps):
        batch = next(supply, None)
        if batch is None:
            raise ValueError(f"batches ended after {step} of {phase.steps} steps")
        for group in optimizer.param_groups:
            group["lr"] = phase.rate(step)
        loss = _accumulate_gradients(model, tokenizer, batch)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        on_step(Progress(step + 1, phase.steps, loss))
    model.eval()


def _accumulate_gradients(
    model: Qwen2ForCausalLM, tokenizer: Qwen2Tokenizer, batch: Sequence[Example]
) -> float:
    rows = sorted((_encode(tokenizer, example) for example in batch), key=lambda row: len(row[0]))
    answer_tokens = sum(len(tokens) - start for tokens, start in rows)
    per_pass = -(-len(rows) // _PASSES)
    total = 0.0
    for first in range(0, len(rows), per_pass):
        loss = _answer_loss_sum(model, rows[first : first + per_pass]) / answer_tokens
        loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    return total


def _encode(tokenizer: Qwen2Tokenizer, example: Example) -> tuple[list[int], int]:
    """All tokens, and where the answer starts. The end token is part of the answer."""
    prompt = tokenizer.encode(QUESTION_MARK + example.question + ANSWER_MARK, add_special_tokens=False)
    answer = tokenizer.encode(example.answer, add_special_tokens=False)
    return [*prompt, *answer, tokenizer.eos_token_id], len(prompt)


def _answer_loss_sum(model: Qwen2ForCausalLM, rows: Sequence[tuple[list[int], int]]) -> torch.Tensor:
    width = max(len(tokens) for tokens, _ in rows)
    tokens_BT = torch.zeros((len(rows), width), dtype=torch.long)
    is_answer_BT = torch.zeros((len(rows), width), dtype=torch.bool)
    for row, (tokens, start) in enumerate(rows):
        tokens_BT[row, : len(tokens)] = torch.tensor(tokens)
        is_answer_BT[row, start : len(tokens)] = True
    # Padding stands on the right, where causal attention cannot see it: no mask is needed.
    hidden_BTH = model.model(input_ids=tokens_BT[:, :-1], use_cache=False).last_hidden_state
    logits_NV = model.lm_head(hidden_BTH[is_answer_BT[:, 1:]])
    return functional.cross_entropy(logits_NV, tokens_BT[:, 1:][is_answer_BT[:, 1:]], reduction="sum")
