"""What publishing and reading weights costs through each kind of channel, against copying the same bytes.

The tensors have the shapes of a Qwen2 model of the chosen size, in bfloat16, tied. Everything runs on one
thread, copy and channel by turns; medians of warm rounds are compared. With `--served` a model of these
shapes follows the channel in transformers: from the beginning of a publication until the model has it,
against a memcpy and loading the same tensors into the model. (Into vLLM: bench_vllm.py.)
`cuda_ipc` takes part where there is a GPU, and is compared with a copy on it.
Run: python tests/benchmarks/bench_weights.py [--megabytes N] [--served]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from swarmd.generation.model import replace_weights
from swarmd.weights import channel, cuda_ipc, file, shared_memory
from swarmd.weights.segment import Segment, channel_name

WARM_UP = 2
"""Each round of `publish` uses the other slot: two rounds touch both."""


def main() -> None:
    """Print seconds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=300, help="size of the weights")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--served", action="store_true", help="also: published to served")
    parser.add_argument("--folder", type=Path, help="where the channel of kind file lies")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = _model(arguments.megabytes * 1_000_000)
    kinds = {shared_memory.KIND: "cpu", file.KIND: "cpu"}
    if torch.cuda.is_available():
        kinds[cuda_ipc.KIND] = "cuda"
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for kind, device in kinds.items():
            _compare(kind, model.to(device), arguments.rounds, Path(folder), is_served=arguments.served)


def _compare(kind: str, model: Any, rounds: int, folder: Path, *, is_served: bool) -> None:
    tensors = {name: tensor.clone() for name, tensor in model.named_parameters()}
    targets = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
    size = sum(tensor.numel() * tensor.element_size() for tensor in targets.values())
    name = channel_name()
    opened = channel.create(kind, name, folder, tensors, same_gpu=kind == cuda_ipc.KIND)
    try:
        # CUDA does not open a handle in the process that made it.
        reader = None if kind == cuda_ipc.KIND else channel.attach(opened.writer.handle)

        def copy() -> None:
            for key, target in targets.items():
                target.copy_(tensors[key])

        actions: dict[str, Callable[[], object]] = {
            "memcpy": copy,
            "publish": lambda: opened.writer.publish(1, tensors),
        }
        if reader is not None:
            actions["read"] = reader.read
        if reader is not None and is_served:
            actions["load"] = lambda: replace_weights(model, tensors)
            actions["served"] = lambda: (
                opened.writer.publish(1, tensors),
                reader.lend(partial(replace_weights, model)),
            )
        seconds: dict[str, list[float]] = {action: [] for action in actions}
        for _ in range(rounds + WARM_UP):
            for action, run in actions.items():
                seconds[action].append(_seconds(run, model.device))
        print(f"{kind}: {size / 1e6:.0f} MB in {len(targets)} tensors")
        _report(seconds)
    finally:
        opened.writer.close()
        Segment.discard(name)


def _report(seconds: dict[str, list[float]]) -> None:
    warm = {action: statistics.median(times[WARM_UP:]) for action, times in seconds.items()}
    baseline = warm["memcpy"]
    for action, times in seconds.items():
        against = baseline + warm["load"] if action == "served" else baseline
        ratios = [
            time / (of_copy + (seconds["load"][turn] if action == "served" else 0.0))
            for turn, (time, of_copy) in enumerate(zip(times, seconds["memcpy"], strict=True))
        ][WARM_UP:]
        print(
            f"  {action:8} {warm[action]:.4f} s  ratio {warm[action] / against:.2f} "
            f"(rounds {min(ratios):.2f} to {max(ratios):.2f}; first {times[0]:.3f} s)"
        )


def _model(size_bytes: int) -> Any:
    """Layers of Qwen2.5-0.5B's shape, and a tied embedding of a quarter of the size."""
    width = 896
    config = Qwen2Config(
        vocab_size=size_bytes // 4 // 2 // width,
        hidden_size=width,
        intermediate_size=4864,
        num_attention_heads=14,
        num_key_value_heads=2,
        num_hidden_layers=max(1, round(size_bytes * 0.75 / 29.8e6)),
        tie_word_embeddings=True,
        dtype="bfloat16",
    )
    torch.manual_seed(0)
    return Qwen2ForCausalLM(config).to(torch.bfloat16).requires_grad_(False)


def _seconds(action: Callable[[], object], device: torch.device) -> float:
    started = time.perf_counter()
    action()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
