import math
from dataclasses import replace

import msgspec
import pytest
import torch

from swarmd.errors import TrainingError
from swarmd.models.tokenization import encode_prompt
from swarmd.training.batch import (
    MOST_LAG,
    batch_totals,
    count_lags,
    cut_minibatches,
    encode_batch,
    mean_surprise,
)
from swarmd.types import FinishReason, Prompt

ANSWERS = {"7": 1, "12": 0, "3 + 4 = 7": 1, "": 0}


def encode_one(group, tokenizer, context=96, **options):
    (encoded,) = encode_batch([group], tokenizer, "std", context, **options).groups
    return encoded


def test_a_peers_completion_ends_with_the_end_token_when_its_decoding_stopped(make_group, tokenizer):
    encoded = encode_one(make_group(ANSWERS), tokenizer)
    for text, completion in zip(ANSWERS, encoded.completions_G, strict=True):
        text_ids = tokenizer.encode(text, add_special_tokens=False)
        assert completion.token_ids_T == (*text_ids, tokenizer.eos_token_id)
        assert completion.behaviour_logprobs_T is None


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
    assert (first.token_ids_T, first.behaviour_logprobs_T) == ((5, 6, 7), (-1.0, -2.0, -3.0))


def test_tokens_that_a_peer_claims_are_not_used(make_group, make_policy, tokenizer):
    group = msgspec.structs.replace(make_group(ANSWERS, make_policy()), is_local=False)
    claimed = msgspec.structs.replace(group.completions_G[0], token_ids_T=(5, 6), logprobs_T=(-1.0, -1.0))
    group = msgspec.structs.replace(group, completions_G=(claimed, *group.completions_G[1:]))
    first = encode_one(group, tokenizer).completions_G[0]
    assert first.token_ids_T == (*tokenizer.encode("7", add_special_tokens=False), tokenizer.eos_token_id)
    assert first.behaviour_logprobs_T is None


def test_a_completion_is_cut_where_the_context_ends(make_group, make_policy, tokenizer):
    prompt_tokens = len(encode_prompt(tokenizer, make_group(ANSWERS).prompt))
    for group in (make_group(ANSWERS), make_group(ANSWERS, make_policy())):
        encoded = encode_one(group, tokenizer, context=prompt_tokens + 2)
        assert [len(completion.token_ids_T) for completion in encoded.completions_G] == [2, 2, 2, 1]
        assert all(
            completion.behaviour_logprobs_T is None
            or len(completion.behaviour_logprobs_T) == len(completion.token_ids_T)
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
    values = [-value for completion in own.completions_G for value in completion.behaviour_logprobs_T]
    claims = [(-9.0,) * len(completion.token_ids_T) for completion in foreign.completions_G]
    filled = replace(
        foreign,
        completions_G=tuple(
            replace(completion, behaviour_logprobs_T=claim)
            for completion, claim in zip(foreign.completions_G, claims, strict=True)
        ),
    )
    assert mean_surprise([own, filled]) == pytest.approx(sum(values) / len(values))
    assert mean_surprise([foreign, filled]) is None


def claim(group, logprobs_GT):
    completions_G = tuple(
        msgspec.structs.replace(completion, logprobs_T=logprobs_T)
        for completion, logprobs_T in zip(group.completions_G, logprobs_GT, strict=True)
    )
    return msgspec.structs.replace(group, completions_G=completions_G)


def test_a_senders_logprobs_are_kept_only_where_they_fit_the_tokens_the_text_has_here(make_group, tokenizer):
    group = make_group({"7": 1, "12": 0, "8": 0, "9": 0})
    claimed = claim(group, [(-1.0, -2.0), (-1.0,), (-1.0, math.inf), None])
    kept = encode_one(claimed, tokenizer, sender_logprobs=True)
    expected = [(-1.0, -2.0), None, None, None]
    assert [completion.behaviour_logprobs_T for completion in kept.completions_G] == expected
    ignored = encode_one(claimed, tokenizer)
    assert {completion.behaviour_logprobs_T for completion in ignored.completions_G} == {None}


def test_a_senders_logprobs_are_cut_with_the_tokens(make_group, tokenizer):
    group = make_group({"7": 1, "12": 0}, finish_reason=FinishReason.STOP)
    room = len(encode_prompt(tokenizer, group.prompt)) + 1
    cut = encode_one(claim(group, [(-1.0, -2.0), (-3.0, -4.0, -5.0)]), tokenizer, room, sender_logprobs=True)
    assert [completion.behaviour_logprobs_T for completion in cut.completions_G] == [(-1.0,), (-3.0,)]


def test_lags_of_own_groups_are_counted(make_group, make_policy, tokenizer):
    own = encode_one(make_group(ANSWERS, make_policy()), tokenizer)
    foreign = encode_one(make_group(ANSWERS), tokenizer)
    groups = [replace(own, policy_version=version) for version in (7, 7, 5, 8)]
    assert count_lags([*groups, foreign], 7) == (3, 0, 1)
    assert count_lags([replace(own, policy_version=0)], 400) == (*[0] * MOST_LAG, 1)
    assert count_lags([foreign], 7) == ()


def test_a_merged_group_has_its_advantages_under_the_joint_mean(make_group, tokenizer):
    """Own failures beside a peer's success: (0, 0) and (0, 1) have the mean 1/4 and the variance 3/16."""
    failed = make_group({"1": 0, "2": 0})
    assert not encode_one(failed, tokenizer).has_signal
    merged = encode_one(msgspec.structs.replace(failed, merged_rewards=(0.0, 1.0)), tokenizer)
    assert merged.has_signal
    expected = -0.25 / (math.sqrt(3 / 16) + 1e-4)
    assert [completion.advantage for completion in merged.completions_G] == pytest.approx([expected] * 2)
