import math
from dataclasses import replace

import msgspec
import pytest
import torch

from swarmd.errors import TrainingError
from swarmd.models.tokenization import encode_prompt
from swarmd.training.batch import batch_totals, cut_minibatches, cut_slices, encode_batch, mean_surprise
from swarmd.types import FinishReason, Prompt

CPU = torch.device("cpu")
ANSWERS = {"7": 1, "12": 0, "3 + 4 = 7": 1, "": 0}


def encode_one(group, tokenizer, context=96):
    (encoded,) = encode_batch([group], tokenizer, "std", context).groups
    return encoded


def test_a_peers_completion_ends_with_the_end_token_when_its_decoding_stopped(make_group, tokenizer):
    encoded = encode_one(make_group(ANSWERS), tokenizer)
    for text, completion in zip(ANSWERS, encoded.completions_G, strict=True):
        text_ids = tokenizer.encode(text, add_special_tokens=False)
        assert completion.token_ids_T == (*text_ids, tokenizer.eos_token_id)
        assert completion.old_logprobs_T is None


def test_a_peers_completion_cut_at_the_limit_gets_no_end_token(make_group, tokenizer):
    encoded = encode_one(make_group(ANSWERS, finish_reason=FinishReason.LENGTH), tokenizer)
    assert all(tokenizer.eos_token_id not in completion.token_ids_T for completion in encoded.completions_G)


def test_an_end_token_spelled_out_by_a_peer_stays_text(make_group, tokenizer):
    end = tokenizer.decode([tokenizer.eos_token_id])
    group = make_group({f"7{end}": 1, "8": 0}, finish_reason=FinishReason.LENGTH)
    assert tokenizer.eos_token_id not in encode_one(group, tokenizer).completions_G[0].token_ids_T


def test_own_completions_keep_the_sampled_tokens_and_their_logprobs(make_group, make_policy, tokenizer):
    group = make_group(ANSWERS, make_policy())
    # A sampler may reach a text by other tokens than the tokenizer would choose.
    odd = msgspec.structs.replace(
        group.completions_G[0], token_ids_T=(5, 6, 7), logprobs_T=(-1.0, -2.0, -3.0)
    )
    group = msgspec.structs.replace(group, completions_G=(odd, *group.completions_G[1:]))
    first = encode_one(group, tokenizer).completions_G[0]
    assert (first.token_ids_T, first.old_logprobs_T) == ((5, 6, 7), (-1.0, -2.0, -3.0))


def test_tokens_that_a_peer_claims_are_not_used(make_group, make_policy, tokenizer):
    group = msgspec.structs.replace(make_group(ANSWERS, make_policy()), is_local=False)
    claimed = msgspec.structs.replace(group.completions_G[0], token_ids_T=(5, 6), logprobs_T=(-1.0, -1.0))
    group = msgspec.structs.replace(group, completions_G=(claimed, *group.completions_G[1:]))
    first = encode_one(group, tokenizer).completions_G[0]
    assert first.token_ids_T == (*tokenizer.encode("7", add_special_tokens=False), tokenizer.eos_token_id)
    assert first.old_logprobs_T is None


def test_a_completion_is_cut_where_the_context_ends(make_group, make_policy, tokenizer):
    prompt_tokens = len(encode_prompt(tokenizer, make_group(ANSWERS).prompt))
    for group in (make_group(ANSWERS), make_group(ANSWERS, make_policy())):
        encoded = encode_one(group, tokenizer, context=prompt_tokens + 2)
        assert [len(completion.token_ids_T) for completion in encoded.completions_G] == [2, 2, 2, 1]
        assert all(
            completion.old_logprobs_T is None or len(completion.old_logprobs_T) == len(completion.token_ids_T)
            for completion in encoded.completions_G
        )


def test_a_group_whose_prompt_fills_the_context_is_dropped_and_counted(make_group, tokenizer):
    long = make_group(ANSWERS, prompt=Prompt("plain", "1 " * 200))
    batch = encode_batch([long, make_group(ANSWERS)], tokenizer, "std", 96)
    assert (len(batch.groups), batch.dropped) == (1, 1)


def test_malformed_groups_are_our_own_fault_and_raise(make_group, make_policy, tokenizer):
    group = make_group(ANSWERS, make_policy())
    short = msgspec.structs.replace(group.completions_G[0], logprobs_T=(-1.0,))
    for broken in (
        msgspec.structs.replace(group, rewards_G=(1.0,)),
        msgspec.structs.replace(group, rewards_G=(1.0, 0.0, math.nan, 0.0)),
        msgspec.structs.replace(group, completions_G=(short, *group.completions_G[1:])),
    ):
        with pytest.raises(TrainingError, match=group.group_id):
            encode_batch([broken], tokenizer, "std", 96)


def test_totals_count_groups_without_signal(make_group, tokenizer):
    groups = [encode_one(make_group(pairs), tokenizer) for pairs in ({"7": 1, "12": 0}, {"7": 0, "12": 0})]
    totals = batch_totals(groups, 16)
    assert (totals.tokens, totals.sequences, totals.token_limit) == (2 * (2 + 3), 4, 16)


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
            assert bool(rows.has_old_logprobs_B[row]) == groups[index].is_local
            seen[index, number] = values = (
                tuple(rows.token_ids_BT[row][mask_T].tolist()),
                rows.old_logprobs_BT[row][mask_T].tolist(),
                float(rows.advantages_B[row]),
            )
            completion = groups[index].completions_G[number]
            expected_old = completion.old_logprobs_T or (0.0,) * len(completion.token_ids_T)
            assert values[0] == completion.token_ids_T
            assert values[1] == pytest.approx(expected_old, rel=1e-6)
            assert values[2] == pytest.approx(completion.advantage)
    # The second completion has no tokens.
    assert sorted(seen) == [(index, number) for index in (0, 1) for number in (0, 2, 3, 4)]
    assert sum(len(rows.origin_B) for rows in slices) == len(seen)


def test_minibatches_deal_out_all_groups_evenly_and_depend_on_the_seed(make_group, tokenizer):
    group = encode_one(make_group(ANSWERS), tokenizer)
    groups = [replace(group, policy_version=number) for number in range(10)]

    def dealt(seed, count):
        minibatches = cut_minibatches(groups, count, torch.Generator().manual_seed(seed))
        return [[member.policy_version for member in minibatch] for minibatch in minibatches]

    assert sorted(number for minibatch in dealt(1, 4) for number in minibatch) == list(range(10))
    assert sorted(len(minibatch) for minibatch in dealt(1, 4)) == [2, 2, 3, 3]
    assert dealt(1, 4) == dealt(1, 4)
    assert dealt(1, 4) != dealt(2, 4)
    assert len(dealt(1, 20)) == 10
    assert dealt(1, 1) == [list(range(10))]
    assert cut_minibatches([], 4, torch.Generator()) == []


def test_surprise_counts_own_samples_only(make_group, make_policy, tokenizer):
    policy = make_policy()
    own = encode_one(make_group({"7": 0, "12": 0}, policy), tokenizer)
    foreign = encode_one(make_group(ANSWERS), tokenizer)
    values = [-value for completion in own.completions_G for value in completion.old_logprobs_T]
    filled = foreign.with_old_logprobs([(-9.0,) * len(c.token_ids_T) for c in foreign.completions_G])
    assert mean_surprise([own, filled]) == pytest.approx(sum(values) / len(values))
    assert mean_surprise([foreign, filled]) is None
