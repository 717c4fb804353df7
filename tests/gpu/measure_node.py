"""A node with a random model of Qwen2.5-0.5B's shape on a GPU, for at most eight minutes, and what it did:
tokens sampled a second, seconds of a training step, memory.

vLLM samples where a build for the GPU is installed, else the transformers engine does; weights go through the
memory of the GPU either way. Prints what ran where, a line per round, and the node's own figures at the end.
Exit code 1 when no round was trained.

Run from the repository: python tests/gpu/measure_node.py
Without a GPU, to try the script: python tests/gpu/measure_node.py --device cpu --model tiny --swarm tiny
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from real_shape import make_model_folder

SETTINGS = {
    "generation.stall_seconds": 120,
    "rewards.strict": "false",
    "schedule.eval_every_rounds": 0,
    "schedule.checkpoint_every_rounds": 0,
    "training.warmup_steps": 0,
    "training.learning_rate": 1e-5,
}
MANIFEST = """
name = "gpu"
max_new_tokens = 128

[prompt]
style = "chat"
system = "Answer with a number."

[[tasks]]
dataset = "count_bits"
config = { min_n = 1, max_n = 1000 }
"""


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default="", help="empty: random, of Qwen2.5-0.5B's shape")
    parser.add_argument("--swarm", default="", help="empty: one that fits the random model")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=400.0, help="the node is stopped after this")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        manifest = folder / "manifest.toml"
        manifest.write_text(MANIFEST)
        model = arguments.model or str(make_model_folder(folder / "model"))
        status = _run(arguments, folder / "home", model, arguments.swarm or str(manifest))
    print(json.dumps({key: status[key] for key in ("round", "policy_version", "tokens_per_second")}))
    print(json.dumps(status["training"]))
    print(json.dumps(status["workers"]))
    return 0 if status["round"] and status["policy_version"] else 1


def _run(arguments: argparse.Namespace, home: Path, model: str, manifest: str) -> Any:
    command = [sys.executable, "-m", "swarmd"]
    settings = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    began = time.monotonic()
    node = subprocess.Popen(
        [
            *(*command, "start", "--home", str(home), "--isolated", "--model", model, "--swarm", manifest),
            *("--device", arguments.device, "--rounds", str(arguments.rounds)),
            *settings,
        ],
        stdin=subprocess.DEVNULL,
    )
    peak_gpu = peak_resident = 0
    while node.poll() is None:
        time.sleep(1.0)
        peak_resident = max(peak_resident, _resident_bytes(node.pid))
        if arguments.device != "cpu":
            free, total = torch.cuda.mem_get_info()
            peak_gpu = max(peak_gpu, total - free)
        if time.monotonic() - began > arguments.seconds:
            node.terminate()
            node.wait()
    print(f"{time.monotonic() - began:.0f} s, exit code {node.returncode}")
    print(f"largest: {peak_gpu / 1e9:.2f} GB of the GPU, {peak_resident / 1e9:.2f} GB resident")
    said = subprocess.run(
        [*command, "status", "--json", "--home", str(home)], capture_output=True, text=True, check=True
    )
    return json.loads(said.stdout)


def _resident_bytes(pid: int) -> int:
    """Of a process and all below it; shared pages count in each."""
    try:
        node = psutil.Process(pid)
        return sum(process.memory_info().rss for process in (node, *node.children(recursive=True)))
    except psutil.NoSuchProcess:
        return 0


if __name__ == "__main__":
    sys.exit(main())
