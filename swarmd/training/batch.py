"""From rollout groups to tensors.

Own completions keep the tokens that were sampled. Peers' completions came as text: they are encoded
with this node's tokenizer, and end with its end token where the author's decoding stopped. Nothing
of a batch is padded across groups: a group's prompt is run once, and its completions against it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from swarmd.errors import TrainingError
from swarmd.models.tokenization import Tokenizer, encode_completion, encode_prompt
from swarmd.training.advantages import group_advantages
from swarmd.training.loss import BatchTotals
from swarmd.types import Completion, RolloutGroup

__all__ = [
    "EncodedBatch",
    "EncodedCompletion",
    "EncodedGroup",
    "Slice",
    "batch_totals",
    "cut_minibatches",
    "cut_slices",
    "encode_batch",
    "mean_surprise",
]


@dataclass(frozen=True)
class EncodedCompletion:
    """One completion as the trainer sees it."""

    token_ids_T: tuple[int, ...]
    old_logprobs_T: tuple[float, ...] | None
    """Under the policy that the ratio is taken against; None: the policy as it is now."""
    advantage: float


@dataclass(frozen=True)
class EncodedGroup:
    """One rollout group as the trainer sees it."""

    prompt_ids_P: tuple[int, ...]
    completions_G: tuple[EncodedCompletion, ...]
    is_local: bool
    has_signal: bool
    policy_version: int

    def with_old_logprobs(self, logprobs_GT: Sequence[tuple[float, ...]]) -> EncodedGroup:
        """The same group, its ratio taken against these log-probabilities, one tuple a completion."""
        pairs = zip(self.completions_G, logprobs_GT, strict=True)
        completions_G = tuple(replace(completion, old_logprobs_T=values) for completion, values in pairs)
        return replace(self, completions_G=completions_G)


@dataclass(frozen=True)
class EncodedBatch:
    """All groups of a training step that fit the model."""

    groups: tuple[EncodedGroup, ...]
    dropped: int
    """Groups left out because their prompt fills the context."""


@dataclass(frozen=True)
class Slice:
    """Completions of one group that are forwarded together, padded on the right with zeros."""

    prompt_ids_P: Tensor
    token_ids_GT: Tensor
    mask_GT: Tensor
    """True on tokens, False on padding."""
    advantages_G: Tensor
    old_logprobs_GT: Tensor | None
    is_local: bool
    policy_version: int
    rows: tuple[int, ...]
    """Which completions of the group these are."""


def encode_batch(
    groups: Sequence[RolloutGroup], tokenizer: Tokenizer, normalisation: str, context_tokens: int
) -> EncodedBatch:
    """Encode `groups`. A completion that would pass `context_tokens` is cut there.

    Raises TrainingError for a group that only a fault of this node can have made: rewards that do
    not match the completions, log-probabilities that do not match the tokens.
    """
    encoded = [_encode_group(group, tokenizer, normalisation, context_tokens) for group in groups]
    fitting = tuple(group for group in encoded if group is not None)
    return EncodedBatch(fitting, dropped=len(encoded) - len(fitting))


def batch_totals(groups: Sequence[EncodedGroup], token_limit: int) -> BatchTotals:
    """What the loss over `groups` is divided by, groups without signal included."""
    return BatchTotals(
        tokens=sum(len(completion.token_ids_T) for group in groups for completion in group.completions_G),
        sequences=sum(len(group.completions_G) for group in groups),
        token_limit=token_limit,
    )


def cut_minibatches(
    groups: Sequence[EncodedGroup], count: int, generator: torch.Generator
) -> list[list[EncodedGroup]]:
    """Deal `groups` in random order into at most `count` minibatches, sizes differing by at most one."""
    count = min(count, len(groups))
    if count <= 1:
        return [list(groups)] if groups else []
    order = torch.randperm(len(groups), generator=generator).tolist()
    return [[groups[index] for index in order[start::count]] for start in range(count)]


def cut_slices(group: EncodedGroup, max_tokens: int, device: torch.device) -> Iterator[Slice]:
    """Cut a group so that prompt and padded completions of a slice hold at most `max_tokens`.

    A slice has at least one completion, whatever its length. Completions of similar length go
    together. Completions without tokens are in no slice.
    """
    lengths = [len(completion.token_ids_T) for completion in group.completions_G]
    longest_first = sorted((row for row, n in enumerate(lengths) if n), key=lambda row: (-lengths[row], row))
    while longest_first:
        room = max_tokens - len(group.prompt_ids_P)
        take = max(1, room // lengths[longest_first[0]])
        yield _make_slice(group, sorted(longest_first[:take]), device)
        longest_first = longest_first[take:]


def mean_surprise(groups: Sequence[EncodedGroup]) -> float | None:
    """Mean of -logprob over the sampled tokens of own groups, nats; an estimate of the entropy.

    None when no own group carries log-probabilities.
    """
    values = [
        -value
        for group in groups
        if group.is_local
        for completion in group.completions_G
        for value in completion.old_logprobs_T or ()
    ]
    return math.fsum(values) / len(values) if values else None


def _encode_group(
    group: RolloutGroup, tokenizer: Tokenizer, normalisation: str, context_tokens: int
) -> EncodedGroup | None:
    if len(group.rewards_G) != len(group.completions_G):
        raise TrainingError(
            f"group {group.group_id} has {len(group.completions_G)} completions "
            f"but {len(group.rewards_G)} rewards"
        )
    try:
        advantages_G = group_advantages(group.rewards_G, normalisation)
    except ValueError as error:
        raise TrainingError(f"group {group.group_id}: {error}") from error
    prompt_ids_P = tuple(encode_prompt(tokenizer, group.prompt))
    room = context_tokens - len(prompt_ids_P)
    if room < 1:
        return None
    return EncodedGroup(
        prompt_ids_P=prompt_ids_P,
        completions_G=tuple(
            _encode_completion(group, completion, advantage, tokenizer, room)
            for completion, advantage in zip(group.completions_G, advantages_G, strict=True)
        ),
        is_local=group.is_local,
        has_signal=group.has_signal,
        policy_version=group.policy_version,
    )


def _encode_completion(
    group: RolloutGroup, completion: Completion, advantage: float, tokenizer: Tokenizer, room: int
) -> EncodedCompletion:
    if not group.is_local or completion.token_ids_T is None:
        token_ids = encode_completion(tokenizer, completion.text, completion.finish_reason)
        return EncodedCompletion(tuple(token_ids[:room]), None, advantage)
    logprobs_T = completion.logprobs_T
    if logprobs_T is not None and len(logprobs_T) != len(completion.token_ids_T):
        raise TrainingError(
            f"group {group.group_id} has a completion of {len(completion.token_ids_T)} tokens "
            f"with {len(logprobs_T)} log-probabilities"
        )
    return EncodedCompletion(
        completion.token_ids_T[:room], None if logprobs_T is None else logprobs_T[:room], advantage
    )


def _make_slice(group: EncodedGroup, rows: Sequence[int], device: torch.device) -> Slice:
    completions_G = [group.completions_G[row] for row in rows]
    longest = max(len(completion.token_ids_T) for completion in completions_G)
    token_ids_GT = torch.zeros(len(rows), longest, dtype=torch.long)
    mask_GT = torch.zeros(len(rows), longest, dtype=torch.bool)
    old_logprobs_GT = torch.zeros(len(rows), longest)
    for row, completion in enumerate(completions_G):
        length = len(completion.token_ids_T)
        token_ids_GT[row, :length] = torch.tensor(completion.token_ids_T)
        mask_GT[row, :length] = True
        if completion.old_logprobs_T is not None:
            old_logprobs_GT[row, :length] = torch.tensor(completion.old_logprobs_T)
    is_known = all(completion.old_logprobs_T is not None for completion in completions_G)
    return Slice(
        prompt_ids_P=torch.tensor(group.prompt_ids_P, device=device),
        token_ids_GT=token_ids_GT.to(device),
        mask_GT=mask_GT.to(device),
        advantages_G=torch.tensor([completion.advantage for completion in completions_G], device=device),
        old_logprobs_GT=old_logprobs_GT.to(device) if is_known else None,
        is_local=group.is_local,
        policy_version=group.policy_version,
        rows=tuple(rows),
    )
