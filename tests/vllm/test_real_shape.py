"""A node with a model of Qwen2.5-0.5B's exact shape goes through two full rounds on the CPU, weights through
shared memory. Needs 17 GB of memory; prints the peak of each process with `-s`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from real_shape import make_model_folder

MANIFEST = """
name = "real-shape"
max_new_tokens = 8

[prompt]
style = "chat"
system = "Answer with a number."

[[tasks]]
dataset = "count_bits"
config = { min_n = 1, max_n = 1000 }
"""
SETTINGS = {
    "model.dtype": "bfloat16",
    "rollout.group_size": 4,
    "rollout.batch_questions": 3,
    # Part of a right answer counts, or no random answer would.
    "rewards.strict": "false",
    "replay.local_groups": 3,
    "replay.external_groups": 0,
    "schedule.max_ahead": 3,
    "schedule.eval_every_rounds": 0,
    "training.learning_rate": 1e-6,
    "training.warmup_steps": 0,
    "training.optimizer": "adamw_8bit",
    "training.gradient_checkpointing": "true",
    "training.timeout_seconds": 1800,
    "generation.kv_cache_bytes": 100_000_000,
    "generation.timeout_seconds": 1800,
    "generation.stall_seconds": 600,
}
PATIENCE_SECONDS = 2400.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_folder(tmp_path_factory.mktemp("qwen"))


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_two_rounds_at_the_shape_of_a_real_model(
    engine: str, folder: Path, tmp_path: Path, start_node: Callable[..., Any]
) -> None:
    manifest = tmp_path / "manifest.toml"
    manifest.write_text(MANIFEST)
    settings = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    node = start_node(
        *("--model", str(folder), "--engine", engine, "--swarm", str(manifest), "--rounds", "2"), *settings
    )
    peaks: dict[str, int] = {}
    while node.process.poll() is None:
        for process in node.family():
            _note_peak(process, peaks)
        psutil.wait_procs([psutil.Process(node.process.pid)], timeout=1.0)
    assert node.process.returncode == 0, node.said()
    for name, peak in peaks.items():
        print(f"{engine}: {name} {peak / 1e9:.2f} GB")

    status = node.status()
    assert (status["round"], status["policy_version"]) == (2, 2)
    assert status["training"]["skipped_steps"] == 0
    assert status["canary"]["state"] == "good"
    assert list((node.home / "checkpoints").iterdir()), node.said()
    assert node.left() == []


def _note_peak(process: psutil.Process, peaks: dict[str, int]) -> None:
    """Keep the largest resident set, shared pages included."""
    try:
        command, lines = process.cmdline(), Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except (psutil.Error, OSError):
        return
    peak = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)
    module = next((word for word in command if word.startswith(("swarmd.entrypoints", "VLLM::"))), "")
    name = module or (command[-1] if command else process.name())
    peaks[name] = max(peak, peaks.get(name, 0))
