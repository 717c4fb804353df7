"""From rollout groups to tensors.

Own completions keep the tokens that were sampled. Peers' completions came as text: they are encoded
with this node's tokenizer, and end with its end token where the author's decoding stopped. A slice
of a batch holds each prompt once, however many completions answer it.
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
    """Completions that are forwarded together, with the prompts they answer; padded on the right with zeros.

    Shapes: Q prompts, P prompt tokens, B completions, T completion tokens.
    """

    prompt_ids_QP: Tensor
    prompt_lengths_Q: Tensor
    prompt_of_B: Tensor
    """Which prompt each completion answers."""
    token_ids_BT: Tensor
    mask_BT: Tensor
    """True on tokens, False on padding."""
    advantages_B: Tensor
    old_logprobs_BT: Tensor
    has_old_logprobs_B: Tensor
    """False: the ratio is taken against the policy as it is now."""
    is_local_B: Tensor
    policy_version_B: Tensor
    origin_B: tuple[tuple[int, int], ...]
    """Index of the group, and of the completion in it."""


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


def cut_slices(
    groups: Sequence[EncodedGroup], max_tokens: int, device: torch.device, *, join_groups: bool = True
) -> Iterator[Slice]:
    """Cut `groups` so that the padded prompts and completions of a slice hold at most `max_tokens`.

    A slice has at least one completion, whatever its length. Prompts of similar length go together,
    and so do a group's completions of similar length; completions without tokens are in no slice.
    Unless `join_groups`, a slice has one prompt.
    """
    pending: list[tuple[int, int]] = []
    prompts: set[int] = set()
    longest_prompt = longest_completion = 0
    for origin in _longest_first(groups):
        prompt = len(groups[origin[0]].prompt_ids_P)
        completion = len(groups[origin[0]].completions_G[origin[1]].token_ids_T)
        size = len(prompts | {origin[0]}) * max(longest_prompt, prompt)
        size += (len(pending) + 1) * max(longest_completion, completion)
        if pending and (size > max_tokens or not (join_groups or origin[0] in prompts)):
            yield _make_slice(groups, pending, device)
            pending, prompts, longest_prompt, longest_completion = [], set(), 0, 0
        pending.append(origin)
        prompts.add(origin[0])
        longest_prompt = max(longest_prompt, prompt)
        longest_completion = max(longest_completion, completion)
    if pending:
        yield _make_slice(groups, pending, device)


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


def _longest_first(groups: Sequence[EncodedGroup]) -> Iterator[tuple[int, int]]:
    """Indices of group and completion, by length of prompt and then of completion."""
    for index in sorted(range(len(groups)), key=lambda index: (-len(groups[index].prompt_ids_P), index)):
        lengths = [len(completion.token_ids_T) for completion in groups[index].completions_G]
        for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
            if lengths[row]:
                yield index, row


def _make_slice(
    groups: Sequence[EncodedGroup], origins: Sequence[tuple[int, int]], device: torch.device
) -> Slice:
    prompts = list(dict.fromkeys(index for index, _ in origins))
    groups_B = [groups[index] for index, _ in origins]
    completions_B = [groups[index].completions_G[row] for index, row in origins]
    token_ids_BT, mask_BT = _pad([completion.token_ids_T for completion in completions_B])
    has_old_B = [completion.old_logprobs_T is not None for completion in completions_B]
    old_logprobs_BT = torch.zeros(mask_BT.shape)
    for row, completion in enumerate(completions_B):
        if completion.old_logprobs_T is not None:
            old_logprobs_BT[row, : len(completion.old_logprobs_T)] = torch.tensor(completion.old_logprobs_T)
    prompt_ids_QP, prompt_mask_QP = _pad([groups[index].prompt_ids_P for index in prompts])
    return Slice(
        prompt_ids_QP=prompt_ids_QP.to(device),
        prompt_lengths_Q=prompt_mask_QP.sum(dim=1).to(device),
        prompt_of_B=torch.tensor([prompts.index(index) for index, _ in origins], device=device),
        token_ids_BT=token_ids_BT.to(device),
        mask_BT=mask_BT.to(device),
        advantages_B=torch.tensor([completion.advantage for completion in completions_B], device=device),
        old_logprobs_BT=old_logprobs_BT.to(device),
        has_old_logprobs_B=torch.tensor(has_old_B, device=device),
        is_local_B=torch.tensor([group.is_local for group in groups_B], device=device),
        policy_version_B=torch.tensor([group.policy_version for group in groups_B], device=device),
        origin_B=tuple(origins),
    )


def _pad(rows: Sequence[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
    """Rows of token ids as one tensor, and a mask that is True on tokens."""
    longest = max(len(row) for row in rows)
    padded = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], dtype=torch.long)
    lengths = torch.tensor([len(row) for row in rows])
    return padded, torch.arange(longest) < lengths.unsqueeze(1)
