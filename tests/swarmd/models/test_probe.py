import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from swarmd.models import gpus, probe
from swarmd.models.probe import container_memory, has_gpu_driver, probe_machine


def test_this_machine_has_its_memory_and_its_processor():
    found = probe_machine(with_gpus=False)
    assert found.gpus == ()
    assert found.memory_bytes <= psutil.virtual_memory().total
    assert 0 < found.free_bytes <= found.memory_bytes
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        assert not found.has_bfloat16


def test_gpus_are_those_that_torch_sees():
    found = probe_machine(with_gpus=True)
    assert len(found.gpus) == (torch.cuda.device_count() if torch.cuda.is_available() else 0)
    if not has_gpu_driver():
        assert (found.gpus, found.gpu_fault) == ((), "")


def reading(program: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let a driver be there, and the process that reads the GPUs do as `program` says."""
    package = tmp_path / "swarmd" / "models"
    package.mkdir(parents=True)
    (tmp_path / "swarmd" / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "gpus.py").write_text(program)
    monkeypatch.setattr(probe, "_DRIVER_FILES", (str(tmp_path),))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(os.environ, "PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(probe, "GPU_SECONDS", 20.0)


def test_what_the_reading_process_prints_is_what_there_is(monkeypatch, tmp_path):
    one = '{"index":1,"name":"G","capability":[9,0],"total_bytes":8,"free_bytes":6,"has_bfloat16":true}'
    reading(f"print('a warning'); print('[{one}]')", monkeypatch, tmp_path)
    found = probe_machine(with_gpus=True)
    assert [(gpu.device, gpu.free_bytes, gpu.has_float16) for gpu in found.gpus] == [("cuda:1", 6, True)]
    assert found.gpu_fault == ""


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("raise SystemExit('driver too old')", "driver too old"),
        ("print('[]')", "torch sees none"),
        ("import os; os.kill(os.getpid(), 11)", "exit code -11"),
        ("import time; time.sleep(60)", "did not answer within 1 s"),
    ],
)
def test_gpus_that_cannot_be_read_are_a_reason_not_an_error(monkeypatch, tmp_path, program, said):
    reading(program, monkeypatch, tmp_path)
    if "sleep" in program:
        monkeypatch.setattr(probe, "GPU_SECONDS", 1.0)
    assert said in probe_machine(with_gpus=True).gpu_fault


def test_the_reading_process_prints_json():
    done = subprocess.run(
        [sys.executable, "-m", "swarmd.models.gpus"], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.startswith("[")


def test_a_device_that_does_not_compute_has_a_fault_in_one_line():
    assert gpus.fault_of(torch.device("cpu")) == ""
    fault = gpus.fault_of(torch.device("cuda", 63))
    assert fault
    assert "\n" not in fault


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_the_tightest_limit_of_a_container_counts_less_its_file_cache(tmp_path):
    own, root = tmp_path / "cgroup", tmp_path / "root"
    own.write_text("0::/system.slice/swarmd.service\n")
    write(root, memory__stat="inactive_file 0\n")
    assert container_memory(root, own) is None
    write(root / "system.slice", memory__max="max\n", memory__current="500\n", memory__stat="")
    write(
        root / "system.slice" / "swarmd.service",
        memory__max="1000\n",
        memory__current="700\n",
        memory__stat="anon 5\ninactive_file 200\n",
    )
    assert container_memory(root, own) == (1000, 500)
    write(root / "system.slice", memory__max="800\n")
    assert container_memory(root, own) == (800, 300)


def test_version_one_of_control_groups_is_read_too(tmp_path):
    own, root = tmp_path / "cgroup", tmp_path / "root"
    own.write_text("5:cpu,cpuacct:/x\n4:memory:/docker/abc\n")
    write(
        root / "memory",
        memory__limit_in_bytes="1000",
        memory__usage_in_bytes="400",
        memory__stat="total_inactive_file 100\n",
    )
    assert container_memory(root, own) == (1000, 700)
    assert container_memory(root, tmp_path / "none") is None
