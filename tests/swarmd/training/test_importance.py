"""Each correction against its formula, in plain numbers, and its gradient against finite differences."""

import math

import pytest
import torch

from swarmd.training.importance import KINDS, Ratios, surrogate, truncated

LOW, HIGH, CAP = 0.2, 0.28, 1.5
LENGTHS = (4, 2, 3)
ADVANTAGES = (1.2, -0.7, -0.4)


def numbers(seed):
    generator = torch.Generator().manual_seed(seed)
    return (-2 + 0.5 * torch.randn(3, 4, generator=generator, dtype=torch.float64)).tolist()


NOW, PROXIMAL, BEHAVIOUR = numbers(1), numbers(2), numbers(3)


def ppo(ratio, advantage):
    return -min(ratio * advantage, min(max(ratio, 1 - LOW), 1 + HIGH) * advantage)


def reference(kind, row, token, now=NOW):
    """The loss of one token as the docstring has it. What carries no gradient is computed from NOW."""
    p, fixed_p = now[row][token], NOW[row][token]
    q, b, advantage = PROXIMAL[row][token], BEHAVIOUR[row][token], ADVANTAGES[row]
    if kind == "clipped":
        return ppo(math.exp(p - b), advantage)
    if kind == "none":
        return ppo(math.exp(p - q), advantage)
    if kind == "token_truncated":
        return -min(math.exp(fixed_p - b), CAP) * advantage * p
    if kind == "decoupled":
        return min(math.exp(q - b), CAP) * ppo(math.exp(p - q), advantage)
    length = LENGTHS[row]
    mean = sum(NOW[row][t] - BEHAVIOUR[row][t] for t in range(length)) / length
    weight = math.exp(mean) if advantage > 0 else min(math.exp(mean), CAP)
    return ppo(weight * math.exp(p - fixed_p), advantage)


def tensors():
    logprobs = torch.tensor(NOW, dtype=torch.float64, requires_grad=True)
    mask = torch.arange(4) < torch.tensor(LENGTHS).unsqueeze(1)
    proximal, behaviour = torch.tensor(PROXIMAL).double(), torch.tensor(BEHAVIOUR).double()
    # What stands on padding must not matter.
    return Ratios(logprobs, proximal, behaviour.masked_fill(~mask, 50.0)), mask


def compute(kind, ratios, mask):
    advantages = torch.tensor(ADVANTAGES, dtype=torch.float64)
    return surrogate(kind, ratios, advantages, mask, (LOW, HIGH), CAP)


@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradient_of_every_token_are_those_of_the_formula(kind):
    ratios, mask = tensors()
    losses = compute(kind, ratios, mask)
    losses.loss_GT[mask].sum().backward()
    for row, length in enumerate(LENGTHS):
        for token in range(length):
            assert float(losses.loss_GT[row, token].detach()) == pytest.approx(reference(kind, row, token))
            around = []
            for step in (1e-6, -1e-6):
                moved = [list(values) for values in NOW]
                moved[row][token] += step
                around.append(reference(kind, row, token, moved))
            slope = (around[0] - around[1]) / 2e-6
            gradient = float(ratios.logprobs_GT.grad[row, token])
            assert gradient == pytest.approx(slope, rel=1e-4, abs=1e-6)
            # A token that the clip holds has no gradient, one whose weight was cut has.
            if gradient == 0.0:
                assert bool(losses.held_GT[row, token])


@pytest.mark.parametrize("kind", KINDS)
def test_on_policy_every_correction_has_the_gradient_of_the_advantage(kind):
    ratios, mask = tensors()
    now = ratios.logprobs_GT.detach()
    losses = compute(kind, Ratios(ratios.logprobs_GT, now, now), mask)
    losses.loss_GT[mask].sum().backward()
    expected = -torch.tensor(ADVANTAGES, dtype=torch.float64).unsqueeze(1) * mask
    assert torch.allclose(ratios.logprobs_GT.grad, expected)
    assert not bool(losses.held_GT.any())


@pytest.mark.parametrize("kind", ["token_truncated", "sequence_geometric", "decoupled"])
def test_the_weight_of_a_late_completion_is_bounded_where_its_advantage_is_negative(kind):
    ratios, mask = tensors()
    now = ratios.logprobs_GT.detach()
    losses = compute(kind, Ratios(ratios.logprobs_GT, now, now - 5.0), mask)
    losses.loss_GT[mask].sum().backward()
    gradient = ratios.logprobs_GT.grad[1:][mask[1:]]
    bound = CAP * torch.tensor(ADVANTAGES[1:]).abs().repeat_interleave(torch.tensor(LENGTHS[1:]))
    assert torch.allclose(gradient, bound.double())
    assert bool(losses.held_GT[mask].all())


def test_without_correction_the_sampler_does_not_matter():
    ratios, mask = tensors()
    far = Ratios(ratios.logprobs_GT, ratios.proximal_GT, ratios.behaviour_GT - 7.0)
    assert torch.equal(compute("none", ratios, mask).loss_GT, compute("none", far, mask).loss_GT)
    assert not torch.equal(compute("clipped", ratios, mask).loss_GT, compute("clipped", far, mask).loss_GT)


def test_the_sequence_ratio_under_the_aggregation_sequence_is_that_of_gspo():
    """GSPO's loss of a completion is the clipped surrogate of its geometric mean ratio, once."""
    ratios, mask = tensors()
    losses = compute("sequence_geometric", ratios, mask)
    for row, length in enumerate(LENGTHS):
        mean = sum(NOW[row][t] - BEHAVIOUR[row][t] for t in range(length)) / length
        ratio = math.exp(mean) if ADVANTAGES[row] > 0 else min(math.exp(mean), CAP)
        own = float(losses.loss_GT[row][mask[row]].mean().detach())
        assert own == pytest.approx(ppo(ratio, ADVANTAGES[row]))


def test_an_unknown_correction_is_refused():
    ratios, mask = tensors()
    with pytest.raises(ValueError, match="'vtrace'"):
        compute("vtrace", ratios, mask)


@pytest.mark.parametrize("claim", [-1e30, -50.0, -2.0, 0.0, 1e30])
def test_no_claim_of_a_sender_gives_a_token_more_weight_than_the_cap(claim):
    logprobs = torch.tensor(NOW, dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor(ADVANTAGES, dtype=torch.float64)
    truncated(logprobs, torch.full_like(logprobs, claim), advantages, 1.0).loss_GT.sum().backward()
    weight_GT = logprobs.grad.abs() / advantages.abs().unsqueeze(-1)
    assert weight_GT.max() <= 1.0 + 1e-12
    # One that says it could hardly say this itself gets the whole weight, and one that lies high gets none.
    assert bool((weight_GT >= 1.0 - 1e-12).all()) == (claim <= -50.0)
