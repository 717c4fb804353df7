"""How a batch is cut for the model: slices of padded tensors that hold each prompt once.

Padding is computed like tokens, so the cut is chosen to have little of it. It never changes what a
step computes, only how fast: the losses of slices add up to the loss of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from swarmd.training.batch import EncodedGroup

__all__ = ["Slice", "cut_slices", "make_slice"]

_SLICE_COST_TOKENS = 128
"""What a slice costs besides its tokens, counted in tokens: below it, padding is cheaper than a cut."""

Origin = tuple[int, int]


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
    behaviour_BT: Tensor
    """Log-probabilities, nats, under the policy that sampled the tokens."""
    has_behaviour_B: Tensor
    """False: that policy is not known."""
    proximal_BT: Tensor
    """Log-probabilities, nats, under the trained policy at the start of the step."""
    has_proximal_B: Tensor
    """False: that is the policy as it is now."""
    is_local_B: Tensor
    policy_version_B: Tensor
    source_B: tuple[tuple[str, str], ...]
    """Author and group id."""
    origin_B: tuple[Origin, ...]
    """Index of the group, and of the completion in it."""


def cut_slices(
    groups: Sequence[EncodedGroup], max_tokens: int, device: torch.device, *, join_groups: bool = True
) -> Iterator[Slice]:
    """Cut `groups` so that the padded prompts and completions of a slice hold at most `max_tokens`.

    A slice has at least one completion, whatever its length; completions without tokens are in no
    slice. Unless `join_groups`, a slice has one prompt.
    """
    origins = [
        (index, row)
        for index, group in enumerate(groups)
        for row, completion in enumerate(group.completions_G)
        if completion.token_ids_T
    ]
    prompt = [len(group.prompt_ids_P) for group in groups]
    completion = {(index, row): len(groups[index].completions_G[row].token_ids_T) for index, row in origins}
    # Either a group stays together, or completions of one length do, whatever their prompts.
    orders = [sorted(origins, key=lambda origin: (-prompt[origin[0]], origin[0], -completion[origin]))]
    if join_groups:
        orders.append(
            sorted(origins, key=lambda origin: (-completion[origin], -prompt[origin[0]], origin[0]))
        )
    cuts = [_cheapest_cut(order, prompt, completion, max_tokens, join_groups) for order in orders]
    _, parts = min(cuts, key=lambda cut: cut[0])
    for part in parts:
        yield make_slice(groups, part, device)


def _cheapest_cut(
    order: Sequence[Origin],
    prompt: Sequence[int],
    completion: dict[Origin, int],
    max_tokens: int,
    join_groups: bool,
) -> tuple[int, list[Sequence[Origin]]]:
    """The cut of `order` into runs that costs fewest padded tokens, and its cost."""
    # best[n]: cost of the first n origins, and where the last run among them begins.
    best = [(0, 0)]
    for end in range(1, len(order) + 1):
        prompts: set[int] = set()
        longest_prompt = longest_completion = 0
        choices: list[tuple[int, int]] = []
        for start in range(end - 1, -1, -1):
            origin = order[start]
            prompts.add(origin[0])
            longest_prompt = max(longest_prompt, prompt[origin[0]])
            longest_completion = max(longest_completion, completion[origin])
            size = len(prompts) * longest_prompt + (end - start) * longest_completion
            if choices and (size > max_tokens or (len(prompts) > 1 and not join_groups)):
                break
            choices.append((best[start][0] + size + _SLICE_COST_TOKENS, start))
        best.append(min(choices))
    parts: list[Sequence[Origin]] = []
    end = len(order)
    while end:
        start = best[end][1]
        parts.append(order[start:end])
        end = start
    return best[-1][0], parts[::-1]


def make_slice(groups: Sequence[EncodedGroup], origins: Sequence[Origin], device: torch.device) -> Slice:
    """The slice of these completions, in this order; each `origin` is (index of the group, in the group)."""
    prompts = list(dict.fromkeys(index for index, _ in origins))
    groups_B = [groups[index] for index, _ in origins]
    completions_B = [groups[index].completions_G[row] for index, row in origins]
    token_ids_BT, mask_BT = _pad([completion.token_ids_T for completion in completions_B])
    behaviour_BT, has_behaviour_B = _pad_known([c.behaviour_logprobs_T for c in completions_B], mask_BT)
    proximal_BT, has_proximal_B = _pad_known([c.proximal_logprobs_T for c in completions_B], mask_BT)
    prompt_ids_QP, prompt_mask_QP = _pad([groups[index].prompt_ids_P for index in prompts])
    return Slice(
        prompt_ids_QP=prompt_ids_QP.to(device),
        prompt_lengths_Q=prompt_mask_QP.sum(dim=1).to(device),
        prompt_of_B=torch.tensor([prompts.index(index) for index, _ in origins], device=device),
        token_ids_BT=token_ids_BT.to(device),
        mask_BT=mask_BT.to(device),
        advantages_B=torch.tensor([completion.advantage for completion in completions_B], device=device),
        behaviour_BT=behaviour_BT.to(device),
        has_behaviour_B=has_behaviour_B.to(device),
        proximal_BT=proximal_BT.to(device),
        has_proximal_B=has_proximal_B.to(device),
        is_local_B=torch.tensor([group.is_local for group in groups_B], device=device),
        policy_version_B=torch.tensor([group.policy_version for group in groups_B], device=device),
        source_B=tuple(group.source for group in groups_B),
        origin_B=tuple(origins),
    )


def _pad(rows: Sequence[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
    """Rows of token ids as one tensor, and a mask that is True on tokens."""
    longest = max(len(row) for row in rows)
    padded = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], dtype=torch.long)
    lengths = torch.tensor([len(row) for row in rows])
    return padded, torch.arange(longest) < lengths.unsqueeze(1)


def _pad_known(rows: Sequence[tuple[float, ...] | None], mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of numbers as one tensor of the mask's shape, zeros elsewhere, and which rows are known."""
    padded_BT = torch.zeros(mask_BT.shape)
    for number, row in enumerate(rows):
        if row is not None:
            padded_BT[number, : len(row)] = torch.tensor(row)
    return padded_BT, torch.tensor([row is not None for row in rows])
