import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from swarmd.errors import TrainingError
from swarmd.training.batch import encode_batch
from swarmd.training.policy import Policy
from swarmd.training.recompute import recompute_layers
from swarmd.training.slices import cut_slices
from swarmd.types import Prompt

ANSWERS = [("7", 1), ("12", 0), ("3 + 4 = 7", 1), ("a b c d e f g h i", 0)]
LONG = Prompt("plain", "<question>Simplify the fraction 48/60 as far as you can.<answer>")
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "initializer_range": 0.2,
}


def make_model(kind, vocabulary):
    torch.manual_seed(0)
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, **SHAPE))
    window = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
    config = Qwen2Config(vocab_size=vocabulary, **SHAPE, **(window if kind == "window" else {}))
    return Qwen2ForCausalLM(config)


def slices_of(policy, groups, tokenizer):
    encoded = encode_batch(groups, tokenizer, "std", 96).groups
    return list(cut_slices(encoded, 10_000, policy.device, join_groups=policy.joins_groups))


def run(policy, slices):
    """Log-probabilities and gradients of all slices, and the bytes kept for the gradient at most."""
    policy.model.zero_grad()
    kept, logprobs = [], []
    for rows in slices:
        sizes: dict[int, int] = {}

        def note(tensor, sizes=sizes):
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            logprobs_BT = policy.logprobs(rows)
        weights = {parameter.untyped_storage().data_ptr() for parameter in policy.parameters.values()}
        kept.append(sum(size for place, size in sizes.items() if place not in weights))
        (logprobs_BT * torch.linspace(-1, 2, logprobs_BT.numel()).reshape(logprobs_BT.shape)).sum().backward()
        logprobs.append(logprobs_BT.detach())
    gradients = {name: parameter.grad.clone() for name, parameter in policy.parameters.items()}
    return logprobs, gradients, max(kept)


@pytest.mark.parametrize("kind", ["qwen2", "window", "llama"])
def test_results_and_gradients_are_bit_for_bit_those_without_recomputation(make_group, tokenizer, kind):
    policy = Policy(make_model(kind, len(tokenizer)), 1.0)
    slices = slices_of(policy, [make_group(ANSWERS), make_group(ANSWERS[:2], prompt=LONG)], tokenizer)
    plain_logprobs, plain_gradients, _ = run(policy, slices)
    policy.recompute()
    logprobs, gradients, _ = run(policy, slices)
    for left, right in zip(plain_logprobs, logprobs, strict=True):
        assert torch.equal(left, right)
    for name, gradient in plain_gradients.items():
        assert gradient.abs().max() > 0
        assert torch.allclose(gradients[name], gradient, rtol=1e-6, atol=1e-7), name


def test_far_less_is_kept_for_the_gradient(make_group, tokenizer):
    policy = Policy(make_model("qwen2", len(tokenizer)), 1.0)
    slices = slices_of(policy, [make_group(ANSWERS)], tokenizer)
    *_, before = run(policy, slices)
    policy.recompute()
    *_, after = run(policy, slices)
    assert after < 0.5 * before


def test_every_layer_is_computed_again_for_the_gradient_and_only_then(make_group, tokenizer):
    policy = Policy(make_model("qwen2", len(tokenizer)), 1.0)
    calls = []
    policy.model.model.layers[1].self_attn.register_forward_hook(lambda *_: calls.append(1))
    policy.recompute()
    (rows,) = slices_of(policy, [make_group(ANSWERS)], tokenizer)
    with torch.no_grad():
        policy.logprobs(rows)
    assert len(calls) == 2  # The prompt and its completions.
    calls.clear()
    policy.logprobs(rows).sum().backward()
    assert len(calls) == 4


def test_a_model_whose_layers_are_not_known_is_refused():
    with pytest.raises(TrainingError, match="gradient_checkpointing"):
        recompute_layers(torch.nn.Linear(2, 2), "past_key_values")
