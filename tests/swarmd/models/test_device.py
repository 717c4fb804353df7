import os

import pytest
import torch

from swarmd.errors import ConfigError
from swarmd.models.device import choose_compute, choose_threads, limit_memory
from swarmd.models.machine import Gpu


def test_cpu_is_always_honoured(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    compute = choose_compute("cpu", "auto")
    assert (compute.device.type, compute.dtype_name) == ("cpu", "float32")


def test_auto_passes_over_a_gpu_that_is_present_but_does_not_work(monkeypatch):
    broken = Gpu(0, "G", (8, 0), 8, 0, has_bfloat16=False, fault="no kernel image")
    monkeypatch.setattr("swarmd.models.device.read_gpus", lambda: (broken,))
    assert choose_compute("auto", "auto").device.type == "cpu"
    with pytest.raises(ConfigError, match="no kernel image"):
        choose_compute("cuda", "auto")


def test_a_named_device_that_does_not_work_is_a_config_error():
    with pytest.raises(ConfigError, match="cuda:63"):
        choose_compute("cuda:63", "float32")


@pytest.mark.parametrize(("device", "dtype"), [("gpu", "auto"), ("cpu", "int8")])
def test_unknown_names_are_config_errors(device, dtype):
    with pytest.raises(ConfigError):
        choose_compute(device, dtype)


def test_a_named_dtype_is_used():
    assert choose_compute("cpu", "bfloat16").dtype == torch.bfloat16


def test_threads_are_half_the_cores_unless_given():
    assert choose_threads(3) == 3
    assert choose_threads(0) == max(1, len(os.sched_getaffinity(0)) // 2)


def test_only_a_gpu_bounds_what_a_process_may_take(monkeypatch):
    bounds = []
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, device: bounds.append((share, device))
    )
    limit_memory(torch.device("cpu"), 0.4)
    limit_memory(torch.device("cuda:1"), 0.4)
    assert bounds == [(0.4, torch.device("cuda:1"))]
