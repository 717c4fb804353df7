import math

import pytest
import torch

from swarmd.training.external import distant_completions, improbable_tokens, unlikely_completions


def test_only_improbable_tokens_of_negative_advantage_are_dropped():
    logprobs_GT = torch.tensor([[0.04, 0.06, 0.9], [0.04, 0.06, 0.9]]).log()
    dropped_GT = improbable_tokens(logprobs_GT, torch.tensor([-1.0, 1.0]), 0.05)
    assert dropped_GT.tolist() == [[True, False, False], [False, False, False]]
    assert not bool(improbable_tokens(logprobs_GT, torch.zeros(2), 0.05).any())


def reference_kl(own, sender):
    terms = [math.exp(o - s) - 1 - (o - s) for o, s in zip(own, sender, strict=True)]
    return sum(terms) / len(terms)


@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_completions_are_dropped_above_the_kl_of_the_formula_and_not_below(factor):
    own, sender = [-1.0, -2.5, -0.3], [-0.7, -0.4, -0.5]
    threshold = reference_kl(own, sender) / factor
    # Twice the same completion, better and worse than its siblings; the fourth place is padding.
    rows = torch.tensor([[*own, 0.0]] * 2), torch.tensor([[*sender, -30.0]] * 2)
    mask_GT = torch.tensor([[True, True, True, False]] * 2)
    dropped_G = distant_completions(*rows, torch.tensor([-1.0, 1.0]), mask_GT, threshold)
    assert dropped_G.tolist() == [factor > 1, False]


def test_the_kl_estimate_is_that_of_tokens_the_sender_samples():
    torch.manual_seed(0)
    sender_V, own_V = (torch.log_softmax(torch.randn(5), dim=0) for _ in range(2))
    exact = float((sender_V.exp() * (sender_V - own_V)).sum())
    # All tokens in the proportions in which the sender says them.
    counts = (sender_V.exp() * 10_000).round().long()
    own_1T = own_V.repeat_interleave(counts).unsqueeze(0)
    sender_1T = sender_V.repeat_interleave(counts).unsqueeze(0)
    mask_1T = torch.ones_like(own_1T, dtype=torch.bool)
    for most, is_dropped in ((exact * 0.98, True), (exact * 1.02, False)):
        dropped_1 = distant_completions(own_1T, sender_1T, torch.tensor([-1.0]), mask_1T, most)
        assert dropped_1.tolist() == [is_dropped]


def test_a_senders_lie_drops_only_its_own_completion():
    own_GT = torch.tensor([[-1.0, -1.0], [-1.0, -1.0]])
    claimed_GT = torch.tensor([[-1e30, -1.0], [-1.0, -1.0]])
    mask_GT = torch.ones(2, 2, dtype=torch.bool)
    assert distant_completions(own_GT, claimed_GT, torch.full((2,), -1.0), mask_GT, 1.0).tolist() == [
        True,
        False,
    ]


def test_unlikely_completions_are_those_of_positive_advantage_below_the_floor_on_average():
    logprobs_GT = torch.tensor([[-1.0, -9.0, 0.0], [-9.0, -9.0, -9.0], [-9.0, -9.0, -9.0], [-6.0, 0.0, 0.0]])
    mask_GT = torch.tensor([[True, True, False], [True] * 3, [True] * 3, [True, False, False]])
    advantages_G = torch.tensor([1.0, 1.0, -1.0, 1.0])
    found_G = unlikely_completions(logprobs_GT, advantages_G, mask_GT, floor=-6.0)
    assert found_G.tolist() == [False, True, False, False]
    assert unlikely_completions(logprobs_GT, advantages_G, mask_GT, floor=-4.9).tolist() == [
        True,
        True,
        False,
        True,
    ]
