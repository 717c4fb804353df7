import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from swarmd.errors import ConfigError, TrainingError
from swarmd.training.messages import TrainingOptions
from swarmd.training.optimizer import make_optimizer, optimizer_state, restore_optimizer

KINDS = ("adamw", "adamw_8bit")


def make(kind, seed=0):
    """A large parameter, whose state is kept in 8 bits, and a small one, whose state is not."""
    generator = torch.Generator().manual_seed(seed)
    parameters = {
        name: torch.nn.Parameter(torch.randn(size, generator=generator))
        for name, size in (("large", 8192), ("small", 16))
    }
    return parameters, make_optimizer(parameters, TrainingOptions(optimizer=kind, learning_rate=0.01))


def step(parameters, optimizer, count, seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        for parameter in parameters.values():
            parameter.grad = parameter.detach() + 0.1 * torch.randn(parameter.shape, generator=generator)
        optimizer.step()


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_optimizer_goes_on_bit_for_bit_after_a_way_through_a_file(kind, tmp_path):
    parameters, optimizer = make(kind)
    step(parameters, optimizer, 3, seed=1)
    save_file(optimizer_state(optimizer, parameters), tmp_path / "state.safetensors")
    others, other = make(kind, seed=9)
    step(others, other, 1, seed=2)
    with torch.no_grad():
        for name, parameter in parameters.items():
            others[name].copy_(parameter)
    restore_optimizer(other, others, load_file(tmp_path / "state.safetensors"))
    step(parameters, optimizer, 3, seed=3)
    step(others, other, 3, seed=3)
    for name, parameter in parameters.items():
        assert torch.equal(parameter, others[name]), name


def test_eight_bits_take_a_quarter_of_the_memory_and_step_nearly_the_same():
    sizes, ends = {}, {}
    for kind in KINDS:
        parameters, optimizer = make(kind)
        step(parameters, optimizer, 10, seed=1)
        state = optimizer_state(optimizer, parameters)
        sizes[kind] = sum(
            tensor.nbytes for key, tensor in state.items() if key.endswith("large") and "qmap" not in key
        )
        ends[kind] = parameters["large"].detach()
    assert sizes["adamw_8bit"] < 0.27 * sizes["adamw"]
    assert (ends["adamw_8bit"] - ends["adamw"]).abs().mean() < 0.01
    assert not torch.equal(ends["adamw_8bit"], ends["adamw"])


def test_an_optimizer_that_has_not_stepped_is_restored_as_such():
    parameters, optimizer = make("adamw")
    assert optimizer_state(optimizer, parameters) == {}
    others, other = make("adamw")
    step(others, other, 2, seed=1)
    restore_optimizer(other, others, {})
    fresh, unused = make("adamw")
    with torch.no_grad():
        for name, parameter in fresh.items():
            parameter.copy_(others[name])
    step(others, other, 1, seed=2)
    step(fresh, unused, 1, seed=2)
    assert all(torch.equal(fresh[name], others[name]) for name in fresh)


@pytest.mark.parametrize(("saved", "running"), [KINDS, KINDS[::-1]])
def test_the_state_of_another_optimizer_is_refused(saved, running):
    parameters, optimizer = make(saved)
    step(parameters, optimizer, 1, seed=1)
    others, other = make(running)
    with pytest.raises(TrainingError, match=r"training\.optimizer"):
        restore_optimizer(other, others, optimizer_state(optimizer, parameters))


def test_what_is_not_there_is_one_clear_line(monkeypatch):
    with pytest.raises(ConfigError, match="'sgd'"):
        make("sgd")
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    with pytest.raises(ConfigError, match=r"swarmd\[adam8bit\]"):
        make("adamw_8bit")
