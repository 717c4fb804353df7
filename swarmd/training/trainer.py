"""The trainer: one call takes a batch of rollout groups and moves the policy.

It promises that a batch without any signal changes nothing, that a loss or gradient that is not
finite never reaches the weights, and that two trainers in the same state do the same, bit for bit,
with the same batches.
"""

from __future__ import annotations

import functools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from swarmd.errors import TrainingError
from swarmd.models.tokenization import Tokenizer
from swarmd.training.batch import (
    EncodedGroup,
    batch_totals,
    count_lags,
    cut_minibatches,
    encode_batch,
    mean_surprise,
)
from swarmd.training.loss import BatchTotals
from swarmd.training.messages import StepMetrics, TrainingOptions
from swarmd.training.objective import Objective
from swarmd.training.optimizer import make_optimizer, optimizer_state, restore_optimizer
from swarmd.training.policy import Policy
from swarmd.training.room import Room, is_out_of_memory
from swarmd.training.schedule import learning_rate
from swarmd.training.slices import Slice, cut_slices
from swarmd.training.tally import Tally
from swarmd.types import RolloutGroup

__all__ = ["Trainer", "TrainerState"]

Result = TypeVar("Result")


@dataclass(frozen=True)
class TrainerState:
    """All that a trainer is beside its settings. The tensors are the live ones, not copies."""

    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    """Adam's moments and step counts, and the random state under `random`."""
    policy_version: int
    steps: int
    skipped_updates: int


class Trainer:
    """GRPO (arXiv 2402.03300) on rollout groups, own and peers'.

    What the ratio of a completion is taken against, `objective` says. With a KL weight, `reference`
    is the policy that the penalty pulls towards.
    """

    def __init__(
        self,
        policy: Policy,
        tokenizer: Tokenizer,
        options: TrainingOptions,
        *,
        max_new_tokens: int,
        seed: int,
        reference: Policy | None = None,
    ) -> None:
        self.policy = policy
        self.policy_version = 0
        """Advances by one with every step that updates the weights."""
        self.steps = 0
        """Optimizer steps taken."""
        self.skipped_updates = 0
        """Optimizer steps left out because loss or gradient was not finite."""
        self._tokenizer = tokenizer
        self._options = options
        self._max_new_tokens = max_new_tokens
        self._objective = Objective(options, reference)
        self._room = Room(options.tokens_at_once)
        self._steps_at_start = 0
        self._random = torch.Generator().manual_seed(seed)
        self._optimizer = make_optimizer(policy.parameters, options)

    def step(self, groups: Sequence[RolloutGroup]) -> StepMetrics:
        """Learn from `groups`; weights change in place. Raises TrainingError for a malformed group."""
        started = time.monotonic()
        options = self._options
        batch = encode_batch(
            groups,
            self._tokenizer,
            options.advantage_normalisation,
            self.policy.context_tokens,
            sender_logprobs=options.external == "f_tis",
        )
        encoded = list(batch.groups)
        self._steps_at_start, skipped_before = self.steps, self.skipped_updates
        entropy, lags = mean_surprise(encoded), count_lags(encoded, self.policy_version)
        if options.inner_epochs * options.minibatches > 1:
            encoded = self._in_memory(functools.partial(self._fix_proximal, batch.groups))
        tally = Tally()
        for _ in range(options.inner_epochs):
            for minibatch in cut_minibatches(encoded, options.minibatches, self._random):
                self._update(minibatch, tally)
        updates = self.steps - self._steps_at_start
        if updates:
            self.policy_version += 1
        self._room.note_step()
        return StepMetrics(
            loss=tally.loss,
            grad_norm=tally.grad_norm,
            mean_ratio=tally.ratio.value,
            clipped_share=tally.clipped.value,
            kl=tally.kl.value,
            entropy=entropy,
            sampler_gap=tally.gap.value,
            sampler_kl=tally.sampler_kl.value,
            effective_share=tally.effective_share,
            dropped_share=tally.dropped.value,
            unlikely_groups=dict(Counter(author for author, _ in tally.unlikely)),
            lag_groups=lags,
            tokens=batch_totals(encoded, self._max_new_tokens).tokens,
            groups=len(encoded),
            groups_with_signal=sum(group.has_signal for group in encoded),
            dropped_groups=batch.dropped,
            updates=updates,
            skipped_updates=self.skipped_updates - skipped_before,
            total_skipped_updates=self.skipped_updates,
            learning_rate=learning_rate(options, self.steps),
            tokens_at_once=self._room.tokens,
            seconds=time.monotonic() - started,
        )

    def state(self) -> TrainerState:
        """What a checkpoint must hold. Valid until the next step."""
        optimizer = optimizer_state(self._optimizer, self.policy.parameters)
        optimizer["random"] = self._random.get_state()
        weights = {name: parameter.detach() for name, parameter in self.policy.parameters.items()}
        return TrainerState(weights, optimizer, self.policy_version, self.steps, self.skipped_updates)

    def restore(self, state: TrainerState) -> None:
        """Become the trainer that `state` was taken from. Raises TrainingError if it is of another model."""
        own = {name: list(parameter.shape) for name, parameter in self.policy.parameters.items()}
        given = {name: list(tensor.shape) for name, tensor in state.weights.items()}
        if other := sorted(name for name in own.keys() | given.keys() if own.get(name) != given.get(name)):
            name = other[0]
            raise TrainingError(
                f"the shapes do not match: tensor {name} is {given.get(name, 'missing')}, "
                f"in the model it is {own.get(name, 'missing')}"
            )
        optimizer = dict(state.optimizer)
        random = optimizer.pop("random")
        restore_optimizer(self._optimizer, self.policy.parameters, optimizer)
        self._random.set_state(random)
        with torch.no_grad():
            for name, parameter in self.policy.parameters.items():
                parameter.copy_(state.weights[name])
        self.policy_version = state.policy_version
        self.steps = state.steps
        self.skipped_updates = state.skipped_updates

    def _update(self, minibatch: Sequence[EncodedGroup], tally: Tally) -> None:
        """One optimizer step, or none when there is nothing to learn or the gradient is not finite."""
        # Without signal a group's gradient is zero, except for what a KL penalty adds.
        useful = [group for group in minibatch if group.has_signal or self._objective.has_penalty]
        totals = batch_totals(minibatch, self._max_new_tokens)
        if not any(completion.token_ids_T for group in useful for completion in group.completions_G):
            return
        loss, seen = self._in_memory(lambda: self._accumulate_gradient(useful, totals))
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters.values(), self._options.max_grad_norm)
        if not (math.isfinite(loss) and math.isfinite(float(norm))):
            self._optimizer.zero_grad(set_to_none=True)
            self.skipped_updates += 1
            return
        for settings in self._optimizer.param_groups:
            settings["lr"] = learning_rate(self._options, self.steps)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        tally.add(seen)
        tally.loss, tally.grad_norm = loss, float(norm)

    def _accumulate_gradient(
        self, groups: Sequence[EncodedGroup], totals: BatchTotals
    ) -> tuple[float, Tally]:
        """Leave the gradient of the loss over `groups` in the parameters; return the loss."""
        self._optimizer.zero_grad(set_to_none=True)
        loss, seen = 0.0, Tally()
        version = self.policy_version if self.steps == self._steps_at_start else None
        for rows in self._slices(groups):
            slice_loss = self._objective.loss(self.policy.logprobs(rows), rows, totals, version, seen)
            slice_loss.backward()  # type: ignore[no-untyped-call]
            loss += float(slice_loss.detach())
        return loss, seen

    def _fix_proximal(self, groups: Sequence[EncodedGroup]) -> list[EncodedGroup]:
        """Write down this policy's log-probabilities, before the first update, where later ones need them."""
        fixed = list(groups)
        places = [place for place, group in enumerate(groups) if self._objective.needs_proximal(group)]
        logprobs_GT: dict[int, list[tuple[float, ...]]] = {
            place: [()] * len(groups[place].completions_G) for place in places
        }
        with torch.no_grad():
            for rows in self._slices([groups[place] for place in places]):
                for (index, row), values_T, mask_T in zip(
                    rows.origin_B, self.policy.logprobs(rows), rows.mask_BT, strict=True
                ):
                    logprobs_GT[places[index]][row] = tuple(values_T[mask_T].tolist())
        for place in places:
            fixed[place] = groups[place].with_proximal(logprobs_GT[place])
        return fixed

    def _in_memory(self, compute: Callable[[], Result]) -> Result:
        """Do `compute`. Out of memory: halve what is forwarded at once, and begin again."""
        while True:
            try:
                return compute()
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error) or not self._room.halve():
                    raise
            torch.cuda.empty_cache()

    def _slices(self, groups: Sequence[EncodedGroup]) -> Iterator[Slice]:
        return cut_slices(groups, self._room.tokens, self.policy.device, join_groups=self.policy.joins_groups)
