import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Gemma2Config, Gemma2ForCausalLM, Qwen2Config, Qwen2ForCausalLM

import swarmd.training.policy as policy_module
from swarmd.errors import TrainingError
from swarmd.training.batch import EncodedCompletion, EncodedGroup, encode_batch
from swarmd.training.policy import Policy
from swarmd.training.slices import make_slice
from swarmd.types import Prompt

ANSWERS = [("7", 1), ("12", 0), ("3 + 4 = 7", 1), ("", 0), ("a b c d e f g h i", 0)]
CPU = torch.device("cpu")


SHORT = Prompt("plain", "<question>1+2<answer>")
LONG = Prompt("plain", "<question>Simplify the fraction 48/60 as far as you can.<answer>")


def slice_of(groups, tokenizer):
    encoded = encode_batch(groups, tokenizer, "std", 96).groups
    origins = [
        (index, row)
        for index, group in enumerate(encoded)
        for row, completion in enumerate(group.completions_G)
        if completion.token_ids_T
    ]
    return make_slice(encoded, origins, CPU)


def naive_logprobs(policy, rows):
    """Prompt and completion together, padded, one row a completion: what the fast way must equal."""
    pairs = [
        (
            rows.prompt_ids_QP[prompt, : rows.prompt_lengths_Q[prompt]],
            rows.token_ids_BT[row][rows.mask_BT[row]],
        )
        for row, prompt in enumerate(rows.prompt_of_B.tolist())
    ]
    whole = [torch.cat(pair) for pair in pairs]
    ids_BS = torch.nn.utils.rnn.pad_sequence(whole, batch_first=True)
    attention_BS = torch.nn.utils.rnn.pad_sequence([torch.ones_like(ids) for ids in whole], batch_first=True)
    logits_BSV = policy.model(input_ids=ids_BS, attention_mask=attention_BS, use_cache=False).logits.float()
    logprobs_BSV = torch.log_softmax(logits_BSV / policy.temperature, dim=-1)
    logprobs = []
    for (prompt_ids, token_ids), logprobs_SV in zip(pairs, logprobs_BSV, strict=True):
        before_TV = logprobs_SV[len(prompt_ids) - 1 : len(prompt_ids) + len(token_ids) - 1]
        logprobs.append(before_TV.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1))
    return torch.nn.utils.rnn.pad_sequence(logprobs, batch_first=True)


def gradients_of(policy, logprobs_BT):
    weights_BT = torch.linspace(-1, 2, logprobs_BT.numel()).reshape(logprobs_BT.shape)
    policy.model.zero_grad()
    (logprobs_BT * weights_BT).sum().backward()
    return {name: parameter.grad.clone() for name, parameter in policy.parameters.items()}


def assert_equals_naive(policy, rows):
    fast_BT, naive_BT = policy.logprobs(rows), naive_logprobs(policy, rows)
    assert torch.allclose(fast_BT, naive_BT, atol=1e-5, rtol=0)
    fast, naive = gradients_of(policy, fast_BT), gradients_of(policy, naive_BT)
    assert fast.keys() == naive.keys()
    for name in naive:
        scale = naive[name].abs().max()
        assert scale > 0, name
        assert (fast[name] - naive[name]).abs().max() <= 1e-5 * max(1.0, float(scale)), name


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("tied", [True, False])
def test_logprobs_and_gradients_equal_those_of_the_naive_padded_forward(
    make_policy, make_group, tokenizer, tied, temperature
):
    policy = make_policy(tied=tied, temperature=temperature)
    assert ("lm_head.weight" in policy.parameters) == (not tied)
    assert_equals_naive(policy, slice_of([make_group(ANSWERS)], tokenizer))


@pytest.mark.parametrize("tied", [True, False])
def test_prompts_of_different_length_run_together_and_equal_the_naive_forward(
    make_policy, make_group, tokenizer, tied
):
    groups = [
        make_group(ANSWERS[:3], prompt=SHORT),
        make_group(ANSWERS),
        make_group(ANSWERS[2:], prompt=LONG),
    ]
    rows = slice_of(groups, tokenizer)
    assert len(set(rows.prompt_lengths_Q.tolist())) == 3
    assert_equals_naive(make_policy(tied=tied), rows)


def test_a_prompt_is_run_once_however_many_completions_answer_it(make_policy, make_group, tokenizer):
    policy = make_policy()
    shapes = []
    policy.model.base_model.register_forward_pre_hook(
        lambda module, arguments, keywords: shapes.append(tuple(keywords["input_ids"].shape)),
        with_kwargs=True,
    )
    rows = slice_of([make_group(ANSWERS), make_group(ANSWERS, prompt=LONG)], tokenizer)
    policy.logprobs(rows)
    longest = int(rows.prompt_lengths_Q.max())
    assert shapes == [(2, longest), (10, rows.token_ids_BT.shape[1] - 1)]


def test_completions_of_a_single_token_equal_the_naive_forward(make_policy, make_group, tokenizer):
    rows = slice_of([make_group([("", 0), ("", 1)])], tokenizer)
    assert rows.token_ids_BT.shape == (2, 1)
    policy = make_policy()
    assert torch.allclose(policy.logprobs(rows), naive_logprobs(policy, rows), atol=1e-5)


def test_logits_taken_in_parts_give_the_same_logprobs_and_gradients(
    make_policy, make_group, tokenizer, monkeypatch
):
    policy, rows = make_policy(), slice_of([make_group(ANSWERS)], tokenizer)
    at_once = policy.logprobs(rows)
    gradients_at_once = gradients_of(policy, at_once)
    monkeypatch.setattr(policy_module, "_LOGITS_AT_ONCE", 3 * len(tokenizer))
    shapes = []
    policy.model.lm_head.register_forward_hook(lambda *call: shapes.append(call[2].shape[0]))
    in_parts = policy.logprobs(rows)
    assert max(shapes) == 3
    assert torch.allclose(at_once, in_parts, atol=1e-6)
    for name, gradient in gradients_of(policy, in_parts).items():
        assert torch.allclose(gradient, gradients_at_once[name], atol=1e-5), name


def test_layers_that_see_only_a_window_equal_the_naive_forward(make_group, tokenizer):
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=96,
        use_sliding_window=True,
        sliding_window=4,
        max_window_layers=1,
        initializer_range=0.2,
    )
    torch.manual_seed(0)
    policy = Policy(Qwen2ForCausalLM(config), 1.0)
    policy.check_shared_prompt()
    assert not policy.joins_groups
    assert_equals_naive(policy, slice_of([make_group(ANSWERS)], tokenizer))


def test_bfloat16_is_computed_under_autocast_with_float32_parameters(make_policy, make_group, tokenizer):
    exact, rows = make_policy(), slice_of([make_group(ANSWERS)], tokenizer)
    rounded = Policy(exact.model, 1.0, torch.bfloat16)
    difference = (rounded.logprobs(rows) - exact.logprobs(rows)).abs().max()
    assert 0 < difference < 0.3
    assert rounded.logprobs(rows).dtype == torch.float32
    assert {parameter.dtype for parameter in rounded.parameters.values()} == {torch.float32}


def test_load_reads_a_model_folder(model_folder, make_policy, make_group, tokenizer):
    rows = slice_of([make_group(ANSWERS)], tokenizer)
    loaded = Policy.load(model_folder, CPU, torch.float32, 1.0)
    assert torch.equal(loaded.logprobs(rows), make_policy().logprobs(rows))


def test_load_refuses_a_model_that_changes_its_logits_after_the_output_layer(tokenizer, tmp_path):
    config = Gemma2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        final_logit_softcapping=1.0,
        initializer_range=0.5,
    )
    Gemma2ForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(TrainingError, match="gemma2"):
        Policy.load(tmp_path, CPU, torch.float32, 1.0)


def test_a_folder_without_readable_weights_is_one_clear_line(model_folder):
    (model_folder / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(TrainingError, match="cannot load the model") as caught:
        Policy.load(model_folder, CPU, torch.float32, 1.0)
    assert "\n" not in str(caught.value)


def test_a_folder_that_lacks_weights_is_refused_instead_of_filled_with_random_ones(model_folder):
    weights = load_file(model_folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, model_folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TrainingError, match=r"lacks 1 weights, such as model\.layers\.1\.mlp\.up_proj"):
        Policy.load(model_folder, CPU, torch.float32, 1.0)


def test_pickled_weights_are_not_read(model_folder, make_policy):
    (model_folder / "model.safetensors").unlink()
    torch.save(make_policy().model.state_dict(), model_folder / "pytorch_model.bin")
    with pytest.raises(TrainingError, match="cannot load the model"):
        Policy.load(model_folder, CPU, torch.float32, 1.0)


class LargestFloats(TorchDispatchMode):
    """Notes the largest float32 tensor that any operation makes."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float32:
                self.numbers = max(self.numbers, tensor.numel())
        return result


def test_the_logits_of_a_large_vocabulary_never_exist_all_at_once(monkeypatch):
    vocabulary, tokens = 151_936, 200
    monkeypatch.setattr(policy_module, "_LOGITS_AT_ONCE", 1 << 22)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    policy = Policy(Qwen2ForCausalLM(config), 1.0)
    completions = tuple(EncodedCompletion((5,) * (tokens // 4), None, 1.0) for _ in range(4))
    group = EncodedGroup((1, 2, 3), completions, False, True, 0)
    rows = make_slice([group], [(0, row) for row in range(4)], CPU)
    with LargestFloats() as largest:
        policy.logprobs(rows).sum().backward()
    assert largest.numbers < 0.2 * vocabulary * tokens
    assert largest.numbers <= policy_module._LOGITS_AT_ONCE
    assert policy.parameters["model.embed_tokens.weight"].grad.abs().max() > 0


def test_log_probabilities_of_a_text_are_at_the_temperature_asked_for_and_at_one_otherwise(make_policy):
    policy, token_ids = make_policy(temperature=0.5), [3, 1, 4, 1, 5]
    with torch.no_grad():
        logits_SV = policy.model(input_ids=torch.tensor([token_ids])).logits[0]
    for temperature, found_S in (
        (1.0, policy.text_logprobs(token_ids)),
        (0.5, policy.text_logprobs(token_ids, policy.temperature)),
    ):
        expected_SV = torch.log_softmax(logits_SV / temperature, dim=-1)
        expected = [float(expected_SV[place, token]) for place, token in enumerate(token_ids[1:])]
        assert found_S.tolist() == pytest.approx(expected, abs=1e-5)
