import os

import pytest
import torch

from swarmd.errors import ConfigError
from swarmd.models.device import choose_compute, choose_threads


def test_cpu_is_always_honoured(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    compute = choose_compute("cpu", "auto")
    assert (compute.device.type, compute.dtype_name, compute.notes) == ("cpu", "float32", ())


def test_auto_passes_over_a_gpu_that_is_present_but_does_not_work(monkeypatch):
    if torch.cuda.is_available():
        monkeypatch.setattr("swarmd.models.device._fault_of", lambda device: "no kernel image")
    else:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    compute = choose_compute("auto", "auto")
    assert compute.device.type == "cpu"
    assert len(compute.notes) == 1
    assert "the CPU is used" in compute.notes[0]


def test_a_named_device_that_does_not_work_is_a_config_error():
    with pytest.raises(ConfigError, match="cuda:63"):
        choose_compute("cuda:63", "auto")


@pytest.mark.parametrize(("device", "dtype"), [("gpu", "auto"), ("cpu", "int8")])
def test_unknown_names_are_config_errors(device, dtype):
    with pytest.raises(ConfigError):
        choose_compute(device, dtype)


def test_a_named_dtype_is_used():
    assert choose_compute("cpu", "bfloat16").dtype == torch.bfloat16


def test_threads_are_half_the_cores_unless_given():
    assert choose_threads(3) == 3
    assert choose_threads(0) == max(1, len(os.sched_getaffinity(0)) // 2)
