"""What a simulated node's rounds brought, as rows: measured from its groups, its loops and its trainer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean

import msgspec

from swarmd.loops.state import LoopState
from swarmd.loops.train import Round
from swarmd.simulate.hostile import payload_share
from swarmd.simulate.in_process import InProcessModel
from swarmd.simulate.rows import Row
from swarmd.types import RolloutGroup

__all__ = ["Ledger", "mean"]


class Ledger:
    """The rows of one node. `close` writes one of what was noted since the last."""

    def __init__(self, number: int, kind: str, start: str, state: LoopState, model: InProcessModel) -> None:
        self.rows: list[Row] = []
        self.generated = 0
        """Own groups sampled since the start."""
        self.updates = 0
        """Optimizer steps since the start."""
        self.own: list[RolloutGroup] = []
        """Own groups of this round, none left out."""
        self._number = number
        self._kind = kind
        self._start = start
        self._state = state
        self._model = model
        self._done: Round | None = None
        self._tokens_before = 0
        self._seconds_before = 0.0

    def note_own(self, groups: Sequence[RolloutGroup]) -> None:
        """Groups were sampled and scored."""
        self.own += groups
        self.generated += len(groups)

    def note_trained(self, done: Round) -> None:
        """The batch of this round was trained on."""
        self._done = done
        self.updates += done.metrics.updates

    def close(self, round_number: int, held_out: Sequence[tuple[str, float]] = ()) -> None:
        """Write the row of a round. `held_out`: datasets and rewards, where the policy was evaluated."""
        own, state = self.own, self._state
        completions = [completion for group in own for completion in group.completions_G]
        row = Row(
            node=self._number,
            kind=self._kind,
            model=self._start,
            round=round_number,
            virtual_seconds=round(state.clock.monotonic(), 6),
            wall_seconds=round(self._model.busy_seconds - self._seconds_before, 3),
            own_reward=mean(group.mean_reward for group in own),
            own_reward_by_task=_mean_by((group.task.dataset, group.mean_reward) for group in own),
            groups_generated=len(own),
            own_groups_with_signal=sum(group.has_signal for group in own),
            tokens_generated=state.generated_tokens - self._tokens_before,
            entropy=mean(-value for completion in completions for value in completion.logprobs_T or ()),
            completion_tokens=mean(len(completion.token_ids_T or ()) for completion in completions),
            external_reward=state.external_mean if round_number else None,
            updates=self.updates,
            policy_version=state.policy_version,
            heldout_reward=mean(reward for _, reward in held_out),
            heldout_by_task=_mean_by(held_out),
            payload_share=payload_share(own),
        )
        self.rows.append(row if self._done is None else _with_training(row, self._done))
        self.own, self._done = [], None
        self._tokens_before, self._seconds_before = state.generated_tokens, self._model.busy_seconds


def mean(values: Iterable[float]) -> float | None:
    """The mean; None of nothing."""
    listed = list(values)
    return fmean(listed) if listed else None


def _mean_by(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Mean for each name, in the order of the names."""
    by_name: defaultdict[str, list[float]] = defaultdict(list)
    for name, value in pairs:
        by_name[name].append(value)
    return {name: fmean(by_name[name]) for name in sorted(by_name)}


def _with_training(row: Row, done: Round) -> Row:
    batch, metrics = done.batch, done.metrics
    return msgspec.structs.replace(
        row,
        groups_own=len(batch.groups) - batch.external,
        groups_external=batch.external,
        groups_filled=batch.filled,
        groups_with_signal=metrics.groups_with_signal,
        grad_norm=metrics.grad_norm,
        mean_ratio=metrics.mean_ratio,
        clipped_share=metrics.clipped_share,
        dropped_share=metrics.dropped_share,
        effective_share=metrics.effective_share,
    )
