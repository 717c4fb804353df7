"""What the node's vLLM engine costs on top of vLLM itself, and how it compares with the transformers engine.

Rollouts: the engines and plain `vllm.LLM.generate` over the same prompts, group size and lengths; all give
log-probabilities. The engines' time includes tokenizing, decoding to text, seeds and looking for new weights.
They are started one after the other, since two would compete, and get the same data type and threads.
Tokens are counted per second, and per processor second of all processes of an engine, which other programs
disturb less; the ratios are of both.

Weights: from the trainer's `publish` until the engine serves the version, against a memcpy of the same
bytes and vLLM's own `reload_weights` in the same running worker.

Run where vLLM is installed: python tests/benchmarks/bench_vllm.py [--model FOLDER | --shape 75mb|0.5b] ...
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

import swarmd
from swarmd.generation.engines import open_engine
from swarmd.generation.messages import GeneratorSettings, LoadWeightsRequest, SampleRequest
from swarmd.generation.vllm_choice import environment, find_vllm, why_not
from swarmd.models.tokenization import encode_prompt, load_tokenizer
from swarmd.types import Prompt
from swarmd.weights.shared_memory import WeightReader, WeightWriter

TINY = Path(swarmd.__file__).parent / "models" / "tiny"
CACHE_BYTES = 1 << 28
SHAPES = {"75mb": (8370, 2), "0.5b": (151_936, 24)}
"""Entries in the vocabulary and layers of a model whose other sizes are those of Qwen2.5-0.5B."""
_UNCOUNTED = 2
"""Updates before those that are measured: they map both slots."""


def main() -> None:
    """Print tokens a second, seconds of an update, and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=str(TINY))
    parser.add_argument("--shape", choices=["tiny", *SHAPES], default="tiny", help="not tiny: random")
    parser.add_argument("--questions", type=int, default=9)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--updates-only", action="store_true", help="no sampling: updates of the weights")
    arguments = parser.parse_args()
    if (reason := why_not(find_vllm())) is not None:
        print(f"not measured: {reason}")
        return
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        # Read by vLLM when it is imported, in this process and in those it starts.
        os.environ.update(environment(arguments.threads, "cpu", folder))
        dtype = "float32"
        if arguments.shape in SHAPES:
            arguments.model = _random_model(arguments.shape, Path(folder))
            dtype = "bfloat16"
        print(
            f"{arguments.shape}, {arguments.threads} thread(s), {arguments.questions} questions x "
            f"{arguments.group_size}, at most {arguments.new_tokens} new tokens, {dtype}"
        )
        if arguments.updates_only:
            opened = _open(arguments, "vllm", dtype)
            _measure_update(arguments, opened, getattr(torch, dtype))
            opened.close()
            return
        engine = _measure_engine(arguments, "vllm", dtype)
        others = {
            "transformers engine": _measure_engine(arguments, "transformers", dtype),
            "vllm.LLM.generate": _measure_plain(arguments, dtype),
        }
    for name, speed in others.items():
        wall, processor = (mine / others for mine, others in zip(engine, speed, strict=True))
        print(f"vLLM engine against {name}: {wall:.2f}, by processor seconds {processor:.2f}")


Speed = tuple[float, float]
"""Tokens a second, and tokens a processor second."""


class _Pace:
    """Measures rounds; the first one warms up."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._speeds: list[Speed] = []

    def measure(self, sample: Callable[[], int]) -> None:
        """One round; `sample` returns how many tokens it made."""
        began, processor_began = time.perf_counter(), _processor_seconds()
        tokens = sample()
        seconds, processor = time.perf_counter() - began, _processor_seconds() - processor_began
        self._speeds.append((tokens / seconds, tokens / processor))

    def report(self) -> Speed:
        """Print and return the medians."""
        walls, processors = zip(*self._speeds[1:], strict=True)
        speed = statistics.median(walls), statistics.median(processors)
        print(
            f"{self._name:20} {speed[0]:7.0f} tokens/s ({min(walls):.0f} to {max(walls):.0f}), "
            f"{speed[1]:.0f} a processor second ({min(processors):.0f} to {max(processors):.0f})"
        )
        return speed


def _processor_seconds() -> float:
    """Of this process and all below it."""
    own = psutil.Process()
    return sum(sum(process.cpu_times()[:2]) for process in (own, *own.children(recursive=True)))


class Spent(NamedTuple):
    """What an action took."""

    seconds: float
    processor_seconds: float


def _spent(action: Callable[[], object]) -> Spent:
    processor_began, began = _processor_seconds(), time.perf_counter()
    action()
    return Spent(time.perf_counter() - began, _processor_seconds() - processor_began)


def _open(arguments: argparse.Namespace, name: str, dtype: str) -> Any:
    settings = GeneratorSettings(
        model_path=arguments.model,
        engine=name,
        device="cpu",
        dtype=dtype,
        threads=arguments.threads,
        seed=0,
        kv_cache_bytes=CACHE_BYTES,
    )
    started = time.perf_counter()
    engine = open_engine(settings, WeightReader.attach)
    print(f"{name} starts in {time.perf_counter() - started:.0f} s")
    return engine


def _measure_engine(arguments: argparse.Namespace, name: str, dtype: str) -> Speed:
    engine = _open(arguments, name, dtype)
    pace = _Pace(f"{name} engine")
    for number in range(arguments.rounds + 1):
        request = SampleRequest(
            _prompts(arguments.questions, number), arguments.group_size, arguments.new_tokens, 1.0, number
        )
        pace.measure(lambda request=request: engine.sample(request).generated_tokens)
    if name == "vllm":
        _measure_update(arguments, engine, getattr(torch, dtype))
    engine.close()
    return pace.report()


def _measure_update(arguments: argparse.Namespace, engine: Any, dtype: torch.dtype) -> None:
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=dtype)
    tensors = model.state_dict()
    targets = [torch.empty_like(parameter) for parameter in model.parameters()]
    size = sum(target.numel() * target.element_size() for target in targets)

    def copy() -> None:
        for target, parameter in zip(targets, model.parameters(), strict=True):
            target.copy_(parameter)

    with WeightWriter.create(f"swarmd-bench-{os.getpid()}", tensors) as writer, torch.no_grad():
        actions: dict[str, Callable[[int], object]] = {
            "memcpy": lambda version: copy(),
            "publish": lambda version: writer.publish(version, tensors),
            "load": lambda version: engine.load_weights(LoadWeightsRequest(writer.handle, version)),
            # vLLM's own method, for which swarmd has no use: it reads the model's file, which is cached.
            "reload": lambda version: engine._loop.run_until_complete(
                engine._server._engine.collective_rpc("reload_weights")
            ),
        }
        spent: dict[str, list[Spent]] = {name: [] for name in actions}
        for version in range(1, arguments.rounds + _UNCOUNTED + 1):
            for name, action in actions.items():
                spent[name].append(_spent(lambda action=action, version=version: action(version)))
    print(f"update, {size / 1e6:.1f} MB; the first load takes {spent['load'][0].seconds:.3f} s")
    counted = {name: times[_UNCOUNTED:] for name, times in spent.items()}
    for name, times in counted.items():
        wall, processor = (statistics.median(values) for values in zip(*times, strict=True))
        print(f"{name:20} {wall:.4f} s, {processor:.3f} processor seconds")
    for number, clock in enumerate(Spent._fields):
        sums = {name: [of_round[number] for of_round in times] for name, times in counted.items()}
        served, compared = (
            [sum(of_round) for of_round in zip(*(sums[name] for name in names), strict=True)]
            for names in (("publish", "load"), ("memcpy", "reload"))
        )
        rounds = [mine / other for mine, other in zip(served, compared, strict=True) if other]
        print(
            f"published to served against memcpy + reload, by {clock}: {sum(served) / sum(compared):.2f} "
            f"(rounds {min(rounds):.2f} to {max(rounds):.2f})"
        )


def _measure_plain(arguments: argparse.Namespace, dtype: str) -> Speed:
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import RequestOutputKind

    # The node's engine has named a folder of its own for vLLM's sockets, and has removed it.
    os.environ["VLLM_RPC_BASE_PATH"] = tempfile.gettempdir()
    tokenizer = load_tokenizer(arguments.model)
    llm = LLM(
        arguments.model,
        dtype=dtype,
        kv_cache_memory_bytes=CACHE_BYTES,
        enforce_eager=arguments.shape == "tiny",
        logprobs_mode="processed_logprobs",
        max_model_len=512,
        disable_log_stats=True,
    )
    parameters = SamplingParams(
        n=arguments.group_size,
        max_tokens=arguments.new_tokens,
        temperature=1.0,
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    pace = _Pace("vllm.LLM.generate")
    for number in range(arguments.rounds + 1):
        prompts = [
            {"prompt_token_ids": encode_prompt(tokenizer, prompt)}
            for prompt in _prompts(arguments.questions, number)
        ]

        def sample(prompts: Any = prompts) -> int:
            outputs = llm.generate(prompts, parameters, use_tqdm=False)
            return sum(len(completion.token_ids) for output in outputs for completion in output.outputs)

        pace.measure(sample)
    return pace.report()


def _prompts(questions: int, number: int) -> tuple[Prompt, ...]:
    """Of some 60 tokens, other ones each time."""
    return tuple(
        Prompt("plain", f"<question>{number} {question} " + "Calculate 7 + 8 - 9. " * 7 + "<answer>")
        for question in range(questions)
    )


def _random_model(shape: str, folder: Path) -> str:
    """A model of one of `SHAPES`, with the bundled tokenizer."""
    vocabulary, layers = SHAPES[shape]
    tokenizer = load_tokenizer(TINY)
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=layers,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        dtype="bfloat16",
    )
    AutoModelForCausalLM.from_config(config).bfloat16().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


if __name__ == "__main__":
    main()
