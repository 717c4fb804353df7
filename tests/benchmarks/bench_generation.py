"""How much faster the engine decodes than plain `model.generate` over the same prompts.

Both get the same prompts, weights, batch, token limit and temperature, on one CPU thread; they take
turns, and the medians of their processor seconds are compared, which other programs disturb less.
`generate` is called with tokens ready and its output is not decoded to text; the engine's time includes
both, and the log-probabilities that `generate` does not give.
Run: python tests/benchmarks/bench_generation.py [--model FOLDER] [--questions N] ...
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import swarmd
from swarmd.generation.messages import SampleRequest
from swarmd.generation.model import load_model
from swarmd.generation.transformers import TransformersEngine
from swarmd.models.tokenization import Tokenizer, encode_prompt, load_tokenizer
from swarmd.tasks.manifest import Manifest
from swarmd.tasks.prompt import render
from swarmd.tasks.reasoning_gym import TaskLibrary
from swarmd.tasks.source import held_out_tasks
from swarmd.types import Prompt
from swarmd.weights.shared_memory import WeightReader


def main() -> None:
    """Print seconds, tokens a second and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=str(Path(swarmd.__file__).parent / "models" / "tiny"))
    parser.add_argument("--questions", type=int, default=9)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    model = load_model(arguments.model, torch.float32).eval()
    tokenizer = load_tokenizer(arguments.model)
    engine = TransformersEngine(model, tokenizer, 0, 1 << 30, WeightReader.attach)
    prompts = _prompts(arguments.questions)
    engine_seconds, plain_seconds = [], []
    engine_tokens = plain_tokens = 0
    for number in range(arguments.rounds + 1):
        request = SampleRequest(prompts, arguments.group_size, arguments.new_tokens, 1.0, number)
        started = time.process_time()
        engine_tokens = engine.sample(request).generated_tokens
        between = time.process_time()
        plain_tokens = _generate(model, tokenizer, request)
        engine_seconds.append(between - started)
        plain_seconds.append(time.process_time() - between)
    # The first of each warms up.
    engine_median, plain_median = statistics.median(engine_seconds[1:]), statistics.median(plain_seconds[1:])
    print(f"{arguments.questions} questions x {arguments.group_size}, {arguments.new_tokens} new tokens")
    for name, seconds, tokens in (
        ("engine", engine_seconds, engine_tokens),
        ("generate", plain_seconds, plain_tokens),
    ):
        median, spread = statistics.median(seconds[1:]), f"{min(seconds[1:]):.3f} to {max(seconds[1:]):.3f}"
        print(f"{name:9} {median:.3f} s ({spread})  {tokens / seconds[-1]:.0f} tokens/s")
    print(f"ratio     {plain_median / engine_median:.2f}")


def _prompts(questions: int) -> tuple[Prompt, ...]:
    manifest = Manifest.load("tiny")
    library = TaskLibrary(manifest.tasks)
    tasks = [library.task(reference) for reference in held_out_tasks(manifest, questions)]
    return tuple(render(task.question, manifest) for task in tasks if task is not None)


def _generate(model: Any, tokenizer: Tokenizer, request: SampleRequest) -> int:
    token_ids = [encode_prompt(tokenizer, prompt) for prompt in request.prompts]
    longest = max(map(len, token_ids))
    padded = torch.tensor([[0] * (longest - len(ids)) + ids for ids in token_ids])
    mask = torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids in token_ids])
    torch.manual_seed(request.seed)
    with torch.inference_mode():
        output = model.generate(
            input_ids=padded,
            attention_mask=mask,
            do_sample=True,
            temperature=request.temperature,
            top_k=0,
            top_p=1.0,
            max_new_tokens=request.max_new_tokens,
            num_return_sequences=request.group_size,
        )
    return int((output[:, longest:] != tokenizer.eos_token_id).sum())


if __name__ == "__main__":
    main()
