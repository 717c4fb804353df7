"""What vLLM's processes are given to read."""

import os
import subprocess
import sys

import pytest

from swarmd.generation.vllm_choice import environment, has_compiler

COMPILES = """
import torch
print(torch.compile(lambda one: one + 1)(torch.ones(1)).item())
"""
FAULTS = """
import resource
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bytearray(64_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def run(code: str, device: str) -> subprocess.CompletedProcess[bytes]:
    """In a process that has what vLLM's would have."""
    given = {name: os.environ[name] for name in ("PATH", "CXX") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-c", code], env={**given, **environment(1, device, "/nowhere")}, capture_output=True
    )


def page_faults(device: str) -> int:
    """Of a process that takes 64 MB for the third time, having given them back."""
    return int(run(FAULTS, device).stdout)


def test_memory_of_an_update_is_kept_for_the_next_one_on_a_cpu() -> None:
    assert page_faults("cpu") < 100 < page_faults("cuda:0")


def test_what_vllm_compiles_anyway_runs_uncompiled_where_there_is_no_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert not has_compiler()
    done = run(COMPILES, "cpu")
    assert done.stdout == b"2.0\n", done.stderr
    monkeypatch.setenv("CXX", sys.executable)
    assert "TORCH_COMPILE_DISABLE" not in environment(1, "cpu", "/nowhere")
