import pytest
import torch

import swarmd.training.slices as slices_module
from swarmd.training.batch import EncodedCompletion, EncodedGroup, encode_batch
from swarmd.training.slices import cut_slices
from swarmd.types import FinishReason, Prompt

CPU = torch.device("cpu")


def encode_one(group, tokenizer):
    (encoded,) = encode_batch([group], tokenizer, "std", 96).groups
    return encoded


def group_of(prompt_tokens, lengths):
    completions = tuple(EncodedCompletion((1,) * length, None, 0.0) for length in lengths)
    return EncodedGroup((1,) * prompt_tokens, completions, False, True, 0)


def padded_tokens(slices):
    return sum(rows.prompt_ids_QP.numel() + rows.token_ids_BT.numel() for rows in slices)


@pytest.mark.parametrize("join_groups", [True, False])
@pytest.mark.parametrize("max_tokens", [1, 30, 40, 60, 10_000])
def test_slices_hold_every_token_once_and_stay_within_the_limit(
    make_group, make_policy, tokenizer, max_tokens, join_groups
):
    answers = {"7": 1, "": 0, "3 + 4 = 7": 1, "12": 0, "1 2 3 4 5 6 7 8": 0}
    short = Prompt("plain", "<question>3+4<answer>")
    cut = {"finish_reason": FinishReason.LENGTH}
    groups = [
        encode_one(make_group(answers, prompt=short, **cut), tokenizer),
        encode_one(make_group(answers, make_policy(), policy_version=3, **cut), tokenizer),
    ]
    # The peer's group gets the own policy's log-probabilities, here by number.
    proximal = [
        tuple(-float(row + place) for place in range(len(completion.token_ids_T)))
        for row, completion in enumerate(groups[0].completions_G)
    ]
    groups[0] = groups[0].with_proximal(proximal)
    slices = list(cut_slices(groups, max_tokens, CPU, join_groups=join_groups))
    if max_tokens == 10_000:
        assert len(slices) == (1 if join_groups else 2)
    seen = {}
    for rows in slices:
        size = rows.prompt_ids_QP.numel() + rows.token_ids_BT.numel()
        assert size <= max_tokens or len(rows.origin_B) == 1
        assert join_groups or len(rows.prompt_ids_QP) == 1
        for row, (index, number) in enumerate(rows.origin_B):
            mask_T, prompt = rows.mask_BT[row], int(rows.prompt_of_B[row])
            prompt_ids_P = rows.prompt_ids_QP[prompt, : rows.prompt_lengths_Q[prompt]]
            assert tuple(prompt_ids_P.tolist()) == groups[index].prompt_ids_P
            assert (bool(rows.is_local_B[row]), int(rows.policy_version_B[row])) == ((False, 0), (True, 3))[
                index
            ]
            assert bool(rows.has_behaviour_B[row]) == groups[index].is_local
            assert bool(rows.has_proximal_B[row]) == (not groups[index].is_local)
            seen[index, number] = values = (
                tuple(rows.token_ids_BT[row][mask_T].tolist()),
                rows.behaviour_BT[row][mask_T].tolist(),
                float(rows.advantages_B[row]),
            )
            completion = groups[index].completions_G[number]
            expected_old = completion.behaviour_logprobs_T or (0.0,) * len(completion.token_ids_T)
            assert values[0] == completion.token_ids_T
            if index == 0:
                assert rows.proximal_BT[row][mask_T].tolist() == list(proximal[number])
            assert values[1] == pytest.approx(expected_old, rel=1e-6)
            assert values[2] == pytest.approx(completion.advantage)
    # The second completion has no tokens.
    assert sorted(seen) == [(index, number) for index in (0, 1) for number in (0, 2, 3, 4)]
    assert sum(len(rows.origin_B) for rows in slices) == len(seen)


def test_long_and_short_completions_go_into_slices_of_their_own_where_padding_would_cost_more():
    groups = [group_of(10, [400, 390, *[8] * 6]), group_of(12, [395, 5, 6, 7, 8, 9, 8, 8])]
    slices = list(cut_slices(groups, 10_000, CPU))
    assert [rows.token_ids_BT.shape for rows in slices] == [(3, 400), (13, 9)]
    # Both groups' prompts are in both, each once.
    assert [rows.prompt_ids_QP.shape for rows in slices] == [(2, 12), (2, 12)]
    tokens = sum(len(c.token_ids_T) for group in groups for c in group.completions_G)
    assert padded_tokens(slices) < 1.1 * tokens


def test_a_group_is_not_torn_where_running_its_prompt_again_would_cost_more():
    groups = [group_of(500, [40, 40, 10, 10]), group_of(100, [40, 40, 10, 10])]
    slices = list(cut_slices(groups, 10_000, CPU))
    assert [rows.prompt_ids_QP.shape for rows in slices] == [(1, 500), (1, 100)]


def test_small_differences_in_length_are_padded_since_a_slice_has_a_cost(monkeypatch):
    groups = [group_of(20, [16, 14, 12, 10]), group_of(22, [9, 8, 7, 6])]
    assert len(list(cut_slices(groups, 10_000, CPU))) == 1
    monkeypatch.setattr(slices_module, "_SLICE_COST_TOKENS", 0)
    assert len(list(cut_slices(groups, 10_000, CPU))) > 1
