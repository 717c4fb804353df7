import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM

from swarmd.errors import GenerationError
from swarmd.generation.decoding import PromptRows, check_decoding, decode_batch
from swarmd.generation.sampling import uniform_stream

PROMPTS = [[5, 6, 7], list(range(100, 131)), [9], [40, 41, 42, 43, 44, 45, 46]]
ENDS = torch.arange(0, 900, 8)
NEW_TOKENS = 12


def prompt_rows(prompts, group_size=3, new_tokens=NEW_TOKENS):
    return [
        PromptRows(ids, [uniform_stream((0,), question, place, new_tokens) for place in range(group_size)])
        for question, ids in enumerate(prompts)
    ]


def full_logprobs(model, prompt, token_ids, temperature):
    """Of each token, by running prompt and completion at once, alone."""
    with torch.no_grad():
        logits_TV = model(input_ids=torch.tensor([[*prompt, *token_ids]])).logits[0].float()
    logprobs_TV = torch.log_softmax(logits_TV[len(prompt) - 1 : -1] / temperature, dim=-1)
    return logprobs_TV.gather(-1, torch.tensor(token_ids).unsqueeze(-1)).squeeze(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("options", [{"tied": True}, {"tied": False}, {"kind": "sliding"}], ids=str)
def test_logprobs_equal_those_of_a_fresh_full_forward(make_model, options, temperature):
    model = make_model(**options)
    rows = decode_batch(model, prompt_rows(PROMPTS), temperature, ENDS)
    assert len({len(row.token_ids_T) for row in rows}) > 3
    for number, row in enumerate(rows):
        expected_T = full_logprobs(model, PROMPTS[number // 3], row.token_ids_T, temperature)
        assert torch.allclose(torch.tensor(row.logprobs_T), expected_T, atol=1e-5, rtol=0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_completion_does_not_depend_on_what_is_decoded_beside_it(make_model, temperature):
    model = make_model()
    prompts = prompt_rows(PROMPTS)
    together = decode_batch(model, prompts, temperature, ENDS)
    alone = [row for prompt in prompts for row in decode_batch(model, [prompt], temperature, ENDS)]
    assert [row.token_ids_T for row in together] == [row.token_ids_T for row in alone]
    assert [row.is_stopped for row in together] == [row.is_stopped for row in alone]
    for one, other in zip(together, alone, strict=True):
        assert torch.allclose(torch.tensor(one.logprobs_T), torch.tensor(other.logprobs_T), atol=1e-5)


def test_greedy_completion_is_what_transformers_generates(make_model):
    model = make_model()
    rows = decode_batch(model, prompt_rows(PROMPTS, group_size=1), 0.0, ENDS)
    for prompt, row in zip(PROMPTS, rows, strict=True):
        generated = model.generate(
            input_ids=torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
            eos_token_id=ENDS.tolist(),
            pad_token_id=0,
        )
        assert row.token_ids_T == generated[0, len(prompt) :].tolist()


def test_first_token_follows_the_models_distribution_in_a_mixed_batch(make_model):
    model = make_model()
    draws = 4_000
    rows = decode_batch(model, prompt_rows(PROMPTS[:2], group_size=draws, new_tokens=1), 1.0, ENDS)
    with torch.no_grad():
        probabilities_V = torch.softmax(model(input_ids=torch.tensor([PROMPTS[0]])).logits[0, -1], dim=-1)
    counts_V = torch.bincount(torch.tensor([row.token_ids_T[0] for row in rows[:draws]]), minlength=960)
    likely = probabilities_V.topk(5).indices
    expected = draws * probabilities_V[likely]
    deviation = (expected * (1 - probabilities_V[likely])).sqrt()
    assert ((counts_V[likely] - expected).abs() < 5 * deviation).all()


def test_prompt_is_run_once_and_finished_rows_leave_the_batch(make_model):
    model = make_model()
    shapes: list[tuple[int, ...]] = []
    model.register_forward_pre_hook(
        lambda _, __, arguments: shapes.append(tuple(arguments["input_ids"].shape)), with_kwargs=True
    )
    rows = decode_batch(model, prompt_rows(PROMPTS, group_size=6), 1.0, ENDS)
    assert shapes[0] == (len(PROMPTS), 31)
    lengths = [len(row.token_ids_T) for row in rows]
    living = [sum(length > step for length in lengths) for step in range(1, max(lengths))]
    assert shapes[1:] == [(count, 1) for count in living]
    assert living[-1] < len(rows)


def test_end_token_ends_a_row_and_is_part_of_it(make_model):
    rows = decode_batch(make_model(), prompt_rows(PROMPTS, group_size=6), 1.0, ENDS)
    ends = set(ENDS.tolist())
    for row in rows:
        assert not ends.intersection(row.token_ids_T[:-1])
        assert row.is_stopped == (row.token_ids_T[-1] in ends)
        assert row.is_stopped or len(row.token_ids_T) == NEW_TOKENS
        assert len(row.logprobs_T) == len(row.token_ids_T)
    assert {row.is_stopped for row in rows} == {True, False}


def test_end_token_at_the_limit_counts_as_stopped(make_model):
    model = make_model()
    (row,) = decode_batch(model, prompt_rows([[5]], 1, 4), 1.0, torch.empty(0, dtype=torch.long))
    (stopped,) = decode_batch(model, prompt_rows([[5]], 1, 4), 1.0, torch.tensor([row.token_ids_T[-1]]))
    assert not row.is_stopped
    assert stopped.is_stopped
    assert stopped.token_ids_T == row.token_ids_T


def test_each_row_has_its_own_limit(make_model):
    prompts = [
        PromptRows([5, 6], [uniform_stream((0,), 0, place, limit) for place, limit in enumerate((3, 1, 7))]),
        PromptRows([8], [uniform_stream((0,), 1, 0, 5)]),
    ]
    model = make_model()
    rows = decode_batch(model, prompts, 1.0, torch.empty(0, dtype=torch.long))
    assert [len(row.token_ids_T) for row in rows] == [3, 1, 7, 5]
    for row in rows[:3]:
        expected_T = full_logprobs(model, [5, 6], row.token_ids_T, 1.0)
        assert torch.allclose(torch.tensor(row.logprobs_T), expected_T, atol=1e-5, rtol=0)


def test_model_that_decodes_rightly_passes_the_check(make_model):
    for kind in ("qwen2", "sliding"):
        check_decoding(make_model(kind=kind))


def test_model_that_ignores_the_mask_fails_the_check(make_model):
    model = make_model()
    model.register_forward_pre_hook(
        lambda _, args, kwargs: (args, kwargs | {"attention_mask": None}), with_kwargs=True
    )
    with pytest.raises(GenerationError, match=r"qwen2 cannot be decoded.*nats off"):
        check_decoding(model)


def test_model_without_keys_and_values_fails_the_check():
    config = MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, state_size=4)
    with pytest.raises(GenerationError, match="mamba cannot be decoded"):
        check_decoding(MambaForCausalLM(config).eval())
