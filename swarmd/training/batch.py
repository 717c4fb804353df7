"""From rollout groups to tokens, with an advantage for each completion.

Own completions keep the tokens that were sampled. Peers' completions came as text: they are encoded
with this node's tokenizer, and end with its end token where the author's decoding stopped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from swarmd.errors import TrainingError
from swarmd.models.tokenization import Tokenizer, encode_completion, encode_prompt
from swarmd.training.advantages import group_advantages
from swarmd.training.loss import BatchTotals
from swarmd.types import Completion, RolloutGroup

__all__ = [
    "MOST_LAG",
    "EncodedBatch",
    "EncodedCompletion",
    "EncodedGroup",
    "batch_totals",
    "count_lags",
    "cut_minibatches",
    "encode_batch",
    "mean_surprise",
]

MOST_LAG = 16
"""Larger lags are counted together with it."""


@dataclass(frozen=True)
class EncodedCompletion:
    """One completion as the trainer sees it."""

    token_ids_T: tuple[int, ...]
    behaviour_logprobs_T: tuple[float, ...] | None
    """Under the policy that sampled the tokens; None where that is not known."""
    advantage: float
    proximal_logprobs_T: tuple[float, ...] | None = None
    """Under the trained policy at the start of the step; None: as it is now."""


@dataclass(frozen=True)
class EncodedGroup:
    """One rollout group as the trainer sees it."""

    prompt_ids_P: tuple[int, ...]
    completions_G: tuple[EncodedCompletion, ...]
    is_local: bool
    has_signal: bool
    policy_version: int
    source: tuple[str, str] = ("", "")
    """Author and group id."""

    def with_proximal(self, logprobs_GT: Sequence[tuple[float, ...]]) -> EncodedGroup:
        """The same group, with the log-probabilities of the policy at the start of the step."""
        pairs = zip(self.completions_G, logprobs_GT, strict=True)
        completions_G = tuple(replace(completion, proximal_logprobs_T=values) for completion, values in pairs)
        return replace(self, completions_G=completions_G)


@dataclass(frozen=True)
class EncodedBatch:
    """All groups of a training step that fit the model."""

    groups: tuple[EncodedGroup, ...]
    dropped: int
    """Groups left out because their prompt fills the context."""


def encode_batch(
    groups: Sequence[RolloutGroup],
    tokenizer: Tokenizer,
    normalisation: str,
    context_tokens: int,
    *,
    sender_logprobs: bool = False,
) -> EncodedBatch:
    """Encode `groups`. A completion that would pass `context_tokens` is cut there.

    With `sender_logprobs`, what peers say of their tokens' log-probabilities is kept, where it is one
    finite number for each token that their text is encoded to here.

    Raises TrainingError for a group that only a fault of this node can have made: rewards that do
    not match the completions, log-probabilities that do not match the tokens.
    """
    encoded = [
        _encode_group(group, tokenizer, normalisation, context_tokens, sender_logprobs) for group in groups
    ]
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


def mean_surprise(groups: Sequence[EncodedGroup]) -> float | None:
    """Mean of -logprob over the sampled tokens of own groups, nats; an estimate of the entropy.

    None when no own group carries log-probabilities.
    """
    values = [
        -value
        for group in groups
        if group.is_local
        for completion in group.completions_G
        for value in completion.behaviour_logprobs_T or ()
    ]
    return math.fsum(values) / len(values) if values else None


def count_lags(groups: Sequence[EncodedGroup], policy_version: int) -> tuple[int, ...]:
    """Own groups by how many versions before `policy_version` they were sampled: entry 0 counts lag 0.

    As long as the largest lag needs; the last possible entry, MOST_LAG, counts larger ones too.
    """
    lags = [
        min(max(0, policy_version - group.policy_version), MOST_LAG) for group in groups if group.is_local
    ]
    return tuple(lags.count(lag) for lag in range(max(lags, default=-1) + 1))


def _encode_group(
    group: RolloutGroup, tokenizer: Tokenizer, normalisation: str, context_tokens: int, sender_logprobs: bool
) -> EncodedGroup | None:
    if len(group.rewards_G) != len(group.completions_G):
        raise TrainingError(
            f"group {group.group_id} has {len(group.completions_G)} completions "
            f"but {len(group.rewards_G)} rewards"
        )
    try:
        joint_G = group_advantages(group.rewards_G + group.merged_rewards, normalisation)
    except ValueError as error:
        raise TrainingError(f"group {group.group_id}: {error}") from error
    advantages_G = joint_G[: len(group.rewards_G)]
    prompt_ids_P = tuple(encode_prompt(tokenizer, group.prompt))
    room = context_tokens - len(prompt_ids_P)
    if room < 1:
        return None
    return EncodedGroup(
        prompt_ids_P=prompt_ids_P,
        completions_G=tuple(
            _encode_own(group, completion, advantage, tokenizer, room)
            if group.is_local
            else _encode_foreign(completion, advantage, tokenizer, room, sender_logprobs)
            for completion, advantage in zip(group.completions_G, advantages_G, strict=True)
        ),
        is_local=group.is_local,
        has_signal=any(advantages_G),
        policy_version=group.policy_version,
        source=(group.author, group.group_id),
    )


def _encode_own(
    group: RolloutGroup, completion: Completion, advantage: float, tokenizer: Tokenizer, room: int
) -> EncodedCompletion:
    if completion.token_ids_T is None:
        return _encode_foreign(completion, advantage, tokenizer, room, False)
    logprobs_T = completion.logprobs_T
    if logprobs_T is not None and len(logprobs_T) != len(completion.token_ids_T):
        raise TrainingError(
            f"group {group.group_id} has a completion of {len(completion.token_ids_T)} tokens "
            f"with {len(logprobs_T)} log-probabilities"
        )
    return EncodedCompletion(
        completion.token_ids_T[:room], None if logprobs_T is None else logprobs_T[:room], advantage
    )


def _encode_foreign(
    completion: Completion, advantage: float, tokenizer: Tokenizer, room: int, sender_logprobs: bool
) -> EncodedCompletion:
    token_ids = encode_completion(tokenizer, completion.text, completion.finish_reason)
    claimed_T = completion.logprobs_T if sender_logprobs else None
    if claimed_T is not None and not (
        # Another number of tokens: the sender reached the text by other tokens than the tokenizer would.
        len(claimed_T) == len(token_ids) and all(math.isfinite(value) for value in claimed_T)
    ):
        claimed_T = None
    return EncodedCompletion(
        tuple(token_ids[:room]), None if claimed_T is None else claimed_T[:room], advantage
    )
