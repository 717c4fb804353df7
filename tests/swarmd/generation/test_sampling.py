import math

import pytest
import torch

from swarmd.generation.sampling import choose_tokens, uniform_stream


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_follow_the_softmax_at_the_temperature(temperature):
    logits_V = torch.tensor([0.0, 1.0, -2.0, 3.0, -math.inf, 0.5])
    draws = 40_000
    uniform_B = uniform_stream((1,), 0, 0, draws)
    tokens_B, logprobs_B = choose_tokens(logits_V.expand(draws, -1), temperature, uniform_B)
    expected_V = torch.softmax(logits_V / temperature, dim=-1)
    counts_V = torch.bincount(tokens_B, minlength=6)
    possible = expected_V > 0
    # Chi-square with 4 degrees of freedom: 23.5 is passed with probability 1e-4.
    chi_square = ((counts_V - draws * expected_V) ** 2)[possible] / (draws * expected_V[possible])
    assert float(chi_square.sum()) < 23.5
    assert counts_V[4] == 0
    assert torch.allclose(logprobs_B, expected_V.log()[tokens_B], atol=1e-6)


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1.0 - 2.0**-53])
def test_token_of_probability_zero_is_never_taken(uniform):
    logits_BV = torch.full((1, 1000), -math.inf)
    logits_BV[0, 500] = 3.0
    tokens_B, logprobs_B = choose_tokens(logits_BV, 1.0, torch.tensor([uniform], dtype=torch.float64))
    assert tokens_B.tolist() == [500]
    assert logprobs_B.tolist() == [0.0]


def test_temperature_zero_takes_the_most_likely_and_reports_it_at_temperature_one():
    logits_BV = torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 0.0]])
    tokens_B, logprobs_B = choose_tokens(logits_BV, 0.0, torch.tensor([0.99, 0.99], dtype=torch.float64))
    assert tokens_B.tolist() == [1, 0]
    assert torch.equal(logprobs_B, torch.log_softmax(logits_BV, -1)[[0, 1], [1, 0]])


def test_logits_that_are_not_finite_give_a_logprob_that_is_not():
    uniform_B = torch.tensor([0.5], dtype=torch.float64)
    for temperature in (0.0, 1.0):
        _, logprobs_B = choose_tokens(torch.tensor([[0.0, math.nan]]), temperature, uniform_B)
        assert not torch.isfinite(logprobs_B).any()


def test_streams_repeat_and_differ_by_each_part_of_their_name():
    def stream(seeds, question, place):
        return tuple(uniform_stream(seeds, question, place, 4).tolist())

    assert stream((1, 2), 3, 4) == stream((1, 2), 3, 4)
    names = [((1, 2), 3, 4), ((2, 1), 3, 4), ((1, 2), 4, 3), ((1, 2), 3, 5), ((-1, 2), 3, 4), ((0, 0), 0, 0)]
    assert len({stream(*name) for name in names}) == len(names)


def test_longer_stream_starts_like_a_shorter_one():
    assert torch.equal(uniform_stream((1,), 0, 0, 9)[:4], uniform_stream((1,), 0, 0, 4))
