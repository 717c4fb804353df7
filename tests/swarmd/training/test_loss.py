import math
import random

import pytest
import torch

from swarmd.training.loss import BatchTotals, clipped_tokens, kl_penalty, policy_loss, token_weights

LOW, HIGH = 0.2, 0.28


def reference_loss(new, old, reference, advantages, aggregation, token_limit, kl_weight):
    """The loss written from the formula, token by token, over ragged lists of completions."""
    tokens = sum(len(sequence) for sequence in new)
    total = 0.0
    for i, advantage in enumerate(advantages):
        of_sequence = 0.0
        for t in range(len(new[i])):
            ratio = math.exp(new[i][t] - old[i][t])
            clipped = min(max(ratio, 1 - LOW), 1 + HIGH)
            surrogate = min(ratio * advantage, clipped * advantage)
            ratio_of_reference = math.exp(reference[i][t] - new[i][t])
            kl = ratio_of_reference - (reference[i][t] - new[i][t]) - 1
            of_sequence -= surrogate - kl_weight * kl
        if aggregation == "token":
            total += of_sequence / tokens
        elif aggregation == "sequence":
            total += of_sequence / len(new[i]) / len(new)
        else:
            total += of_sequence / (len(new) * token_limit)
    return total


def ragged(lengths, generator):
    return [[generator.uniform(-3, -0.01) for _ in range(length)] for length in lengths]


def padded(rows):
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


def loss_in_slices(slices, lengths, new, old, reference, advantages, aggregation, token_limit, kl_weight):
    totals = BatchTotals(sum(lengths), len(lengths), token_limit)
    total = 0.0
    for rows in slices:
        new_GT, old_GT, reference_GT = (padded([x[i] for i in rows]) for x in (new, old, reference))
        mask_GT = padded([[1] * lengths[i] for i in rows]).bool()
        advantages_G = torch.tensor([advantages[i] for i in rows])
        loss_GT = policy_loss(new_GT, old_GT, advantages_G, LOW, HIGH)
        loss_GT = loss_GT + kl_weight * kl_penalty(new_GT, reference_GT)
        total += float((loss_GT * token_weights(mask_GT, aggregation, totals)).sum())
    return total


@pytest.mark.parametrize("kl_weight", [0.0, 0.3])
@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
@pytest.mark.parametrize("slices", [[range(5)], [(0, 1), (2,), (3, 4)], [(4,), (2,), (0,), (1,), (3,)]])
def test_loss_equals_the_formula_whatever_the_slices(slices, aggregation, kl_weight):
    generator = random.Random(7)
    lengths = [1, 4, 9, 2, 6]
    new, old, reference = (ragged(lengths, generator) for _ in range(3))
    advantages = [generator.uniform(-2, 2) for _ in lengths]
    arguments = (new, old, reference, advantages, aggregation, 16, kl_weight)
    assert loss_in_slices(slices, lengths, *arguments) == pytest.approx(reference_loss(*arguments), rel=1e-5)


@pytest.mark.parametrize(
    ("ratio", "advantage", "is_held"),
    [
        (1.0, 1.0, False),
        (1.27, 1.0, False),
        (1.29, 1.0, True),
        (0.5, 1.0, False),
        (0.79, -1.0, True),
        (0.81, -1.0, False),
        (3.0, -1.0, False),
        (3.0, 0.0, False),
    ],
)
def test_a_token_held_by_the_clip_has_no_gradient_and_is_reported(ratio, advantage, is_held):
    new_GT = torch.tensor([[math.log(ratio)]], requires_grad=True)
    old_GT, advantages_G = torch.zeros(1, 1), torch.tensor([advantage])
    policy_loss(new_GT, old_GT, advantages_G, LOW, HIGH).sum().backward()
    assert bool(clipped_tokens(new_GT, old_GT, advantages_G, LOW, HIGH)) == is_held
    expected = 0.0 if is_held else -ratio * advantage
    assert float(new_GT.grad) == pytest.approx(expected, rel=1e-5)


def test_no_gradient_flows_into_old_or_reference_logprobs():
    new_GT, old_GT, reference_GT = (torch.full((1, 2), -v, requires_grad=True) for v in (1.0, 1.1, 1.2))
    loss_GT = policy_loss(new_GT, old_GT, torch.ones(1), LOW, HIGH) + kl_penalty(new_GT, reference_GT)
    loss_GT.sum().backward()
    assert old_GT.grad is None
    assert reference_GT.grad is None
    assert new_GT.grad is not None


def test_kl_penalty_is_zero_for_equal_policies_and_positive_otherwise():
    logprobs_GT = torch.linspace(-4, -0.1, 9).unsqueeze(0)
    assert kl_penalty(logprobs_GT, logprobs_GT).abs().max() == 0
    assert kl_penalty(logprobs_GT, logprobs_GT + 0.3).min() > 0
    assert kl_penalty(logprobs_GT, logprobs_GT - 0.3).min() > 0


def test_kl_penalty_estimates_the_kl_of_sampled_tokens():
    torch.manual_seed(0)
    policy_V, reference_V = (torch.log_softmax(torch.randn(5), dim=0) for _ in range(2))
    exact = float((policy_V.exp() * (policy_V - reference_V)).sum())
    # The expectation over tokens sampled from the policy.
    estimate = float((policy_V.exp() * kl_penalty(policy_V, reference_V)).sum())
    assert estimate == pytest.approx(exact, rel=1e-5)


def test_padding_and_empty_completions_have_no_weight():
    mask_GT = torch.tensor([[True, True, False], [False, False, False]])
    for aggregation in ("token", "sequence", "constant"):
        weights_GT = token_weights(mask_GT, aggregation, BatchTotals(2, 2, 8))
        assert torch.isfinite(weights_GT).all()
        assert (weights_GT > 0).tolist() == mask_GT.tolist()


def test_an_unknown_aggregation_is_refused():
    with pytest.raises(ValueError, match="'mean'"):
        token_weights(torch.ones(1, 1), "mean", BatchTotals(1, 1, 1))
