"""What publishing and reading weights through shared memory costs, against copying the same bytes.

The tensors have the shapes of a Qwen2 model of the chosen size, in bfloat16, tied. Everything runs on
one thread; the medians of warm rounds are compared, and the first round, which also has the memory
mapped page by page, is printed beside them. Run: python tests/benchmarks/bench_weights.py [--megabytes N]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch

from swarmd.weights.shared_memory import WeightReader, WeightWriter


def main() -> None:
    """Print seconds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=300, help="size of the weights")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    tensors = _tensors(arguments.megabytes * 1_000_000)
    targets = {name: torch.empty_like(tensor) for name, tensor in tensors.items() if name != "lm_head.weight"}

    def copy() -> None:
        for name, target in targets.items():
            target.copy_(tensors[name])

    with WeightWriter.create(f"swarmd-bench-{os.getpid()}", tensors) as writer:
        with WeightReader.attach(writer.handle) as reader:
            # Each round of `publish` uses the other slot: two rounds map both.
            copying = [_seconds(copy) for _ in range(arguments.rounds + 2)]
            publishing = [_seconds(lambda: writer.publish(1, tensors)) for _ in range(arguments.rounds + 2)]
            reading = [_seconds(reader.read) for _ in range(arguments.rounds + 2)]
    size = sum(tensor.numel() * tensor.element_size() for tensor in targets.values())
    memcpy = statistics.median(copying[2:])
    print(f"{size / 1e6:.0f} MB in {len(targets)} tensors")
    print(f"memcpy   {memcpy:.4f} s  ({size / memcpy / 1e9:.1f} GB/s)")
    for name, seconds in (("publish", publishing), ("read", reading)):
        median = statistics.median(seconds[2:])
        print(f"{name:8} {median:.4f} s  ratio {median / memcpy:.2f}  (first {seconds[0]:.3f} s)")


def _tensors(size_bytes: int) -> dict[str, torch.Tensor]:
    """A tied embedding of a quarter of the size, and layers of Qwen2.5-0.5B's shape for the rest."""
    width, inner = 896, 4864
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).bfloat16()

    embedding = random(size_bytes // 4 // 2 // width, width)
    tensors = {"model.embed_tokens.weight": embedding, "lm_head.weight": embedding}
    left = size_bytes - 2 * embedding.numel()
    layer = 0
    while left > 0:
        layer_tensors = {
            "q": random(width, width),
            "k": random(128, width),
            "v": random(128, width),
            "o": random(width, width),
            "gate": random(inner, width),
            "up": random(inner, width),
            "down": random(width, inner),
            "norm": random(width),
        }
        tensors |= {f"model.layers.{layer}.{name}.weight": tensor for name, tensor in layer_tensors.items()}
        left -= sum(2 * tensor.numel() for tensor in layer_tensors.values())
        layer += 1
    return tensors


def _seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
