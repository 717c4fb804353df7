import sys

import msgspec
import pytest
import torch

from swarmd.errors import ConfigError, TrainingError
from swarmd.training.adapters import merged_weights
from swarmd.training.batch import encode_batch
from swarmd.training.messages import TrainingOptions
from swarmd.training.policy import Policy
from swarmd.training.slices import cut_slices
from swarmd.training.trainer import Trainer

CPU = torch.device("cpu")
OPTIONS = TrainingOptions(lora_rank=4, lora_alpha=8.0, learning_rate=0.01, warmup_steps=0)
ANSWERS = {"7": 1, "12": 0, "seven": 0}


def load(folder, options=OPTIONS, dtype=torch.float32, seed=0):
    return Policy.load(folder, CPU, dtype, 1.0, options, seed)


def train(policy, tokenizer, group, steps=3):
    trainer = Trainer(policy, tokenizer, OPTIONS, max_new_tokens=16, seed=0)
    for _ in range(steps):
        assert trainer.step([group]).updates == 1
    return trainer


def rows_of(group, tokenizer):
    (rows,) = cut_slices(encode_batch([group], tokenizer, "std", 96).groups, 10_000, CPU)
    return rows


def test_merged_weights_are_a_model_of_the_same_names_that_gives_the_same_logprobs(
    model_folder, make_policy, make_group, tokenizer
):
    policy, plain, group = load(model_folder), make_policy(), make_group(ANSWERS)
    rows = rows_of(group, tokenizer)
    assert torch.equal(policy.logprobs(rows), plain.logprobs(rows))
    train(policy, tokenizer, group)
    trained = policy.logprobs(rows).detach()
    assert (trained - plain.logprobs(rows)).abs().max() > 0.01
    weights = policy.weights()
    assert weights.keys() == plain.weights().keys()
    with torch.no_grad():
        for name, parameter in plain.parameters.items():
            parameter.copy_(weights[name])
    assert torch.allclose(plain.logprobs(rows), trained, atol=1e-5)
    # Merging changes nothing.
    assert torch.equal(policy.logprobs(rows), trained)


def test_only_adapters_are_trained_and_kept_in_checkpoints(model_folder, make_policy, make_group, tokenizer):
    policy, start = load(model_folder), make_policy()
    trainer = train(policy, tokenizer, make_group(ANSWERS))
    state = trainer.state()
    assert state.weights
    assert all(".lora_" in name for name in state.weights)
    assert sum(tensor.numel() for tensor in state.weights.values()) < 0.5 * sum(
        parameter.numel() for parameter in start.parameters.values()
    )
    frozen = {
        name.replace(".base_layer.", "."): parameter
        for name, parameter in policy.model.named_parameters()
        if ".lora_" not in name
    }
    for name, parameter in start.parameters.items():
        assert torch.equal(frozen[name], parameter), name
        assert frozen[name].grad is None


def test_restored_adapters_go_on_bit_for_bit_and_other_ranks_are_refused(model_folder, make_group, tokenizer):
    group = make_group(ANSWERS)
    trainer = train(load(model_folder), tokenizer, group)
    resumed = Trainer(load(model_folder, seed=7), tokenizer, OPTIONS, max_new_tokens=16, seed=0)
    resumed.restore(trainer.state())
    for each in (trainer, resumed):
        each.step([group])
    left, right = trainer.policy.weights(), resumed.policy.weights()
    assert all(torch.equal(left[name], right[name]) for name in left)
    other = TrainingOptions(lora_rank=2)
    refusing = Trainer(load(model_folder, other), tokenizer, other, max_new_tokens=16, seed=0)
    with pytest.raises(TrainingError, match="the shapes do not match"):
        refusing.restore(trainer.state())


def test_the_seed_decides_the_adapters_and_the_global_random_state_stays(model_folder):
    before = torch.get_rng_state()
    same, again, other = (load(model_folder, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    name = next(name for name in same.parameters if "lora_A" in name)
    assert torch.equal(same.parameters[name], again.parameters[name])
    assert not torch.equal(same.parameters[name], other.parameters[name])


def test_frozen_weights_take_the_format_computed_in_and_adapters_stay_float32(
    model_folder, make_group, tokenizer
):
    policy = load(model_folder, dtype=torch.bfloat16)
    frozen = {p.dtype for name, p in policy.model.named_parameters() if ".lora_" not in name}
    assert frozen == {torch.bfloat16}
    assert {parameter.dtype for parameter in policy.parameters.values()} == {torch.float32}
    before = {name: tensor.float() for name, tensor in policy.weights().items()}
    train(policy, tokenizer, make_group(ANSWERS))
    changed = [n for n, tensor in policy.weights().items() if not torch.equal(tensor.float(), before[n])]
    assert any("q_proj" in name for name in changed)


def test_adapters_work_with_recomputation(model_folder, make_group, tokenizer):
    group = make_group(ANSWERS)
    plain = load(model_folder)
    recomputed = load(model_folder, msgspec.structs.replace(OPTIONS, gradient_checkpointing=True))
    for policy in (plain, recomputed):
        train(policy, tokenizer, group)
    left, right = plain.weights(), recomputed.weights()
    assert all(torch.allclose(left[name], right[name], atol=1e-6) for name in left)


def test_without_adapters_the_weights_are_the_live_ones(make_policy):
    policy = make_policy()
    weights = merged_weights(policy.model)
    assert weights.keys() == policy.parameters.keys()
    assert all(weights[name].data_ptr() == p.data_ptr() for name, p in policy.parameters.items())


def test_a_missing_package_is_one_clear_line(model_folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r"swarmd\[lora\]"):
        load(model_folder)
