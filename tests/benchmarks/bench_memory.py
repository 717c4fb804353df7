"""How good the memory estimate is: what trainer and generator are said to take, against what they took.

Each runs in a process of its own, as in a node: the trainer publishes, learns from a batch with signal and
publishes again; the generator samples and loads new weights. Measured is the largest resident size
(VmHWM) of the process, which counts libraries that several processes share, and the files of the model
while they are read; the weight channel counts for the trainer, which makes it.

Run: python tests/benchmarks/bench_memory.py [--shape tiny|0.5b] [--dtype auto|float32|bfloat16] ...
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from swarmd.cli.planning import workload_of
from swarmd.config import Config
from swarmd.config_sources import load_config
from swarmd.models.machine import Machine
from swarmd.models.memory import estimate_memory
from swarmd.models.placement import MOST_TOKENS_AT_ONCE, Placement, Wish, place
from swarmd.models.probe import probe_machine
from swarmd.models.resolve import resolve
from swarmd.models.shape import read_shape
from swarmd.tasks.manifest import Manifest

PROMPT_CHARACTERS = 120


def main() -> None:
    """Print estimate, measurement and their ratio for each process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=("tiny", "0.5b"), default="tiny")
    parser.add_argument("--layers", type=int, default=24, help="of the 0.5b shape, where memory is short")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--process", choices=("trainer", "generator"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--channel", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    config = load_config(assignments=["generation.engine=transformers", *arguments.settings]).config
    if arguments.process:
        placement = _placed(config, arguments.folder)
        if arguments.process == "trainer":
            _train(config, arguments.folder, placement)
        else:
            _generate(config, arguments.folder, placement, arguments.channel)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = str(resolve("tiny").path)
        if arguments.shape == "0.5b":
            import torch
            from random_models import QWEN2_5_HALF_BILLION, make_model_folder

            shape = QWEN2_5_HALF_BILLION | {"num_hidden_layers": arguments.layers}
            folder = str(make_model_folder(Path(temporary), chat=False, dtype=torch.bfloat16, **shape))
        rows = _compare(config, folder, arguments.settings)
    if arguments.json:
        print(json.dumps(rows))
        return
    for name, row in rows.items():
        print(
            f"{name:<10} estimated {row['estimated'] / 1e9:6.2f} GB   "
            f"measured {row['measured'] / 1e9:6.2f} GB   ratio {row['estimated'] / row['measured']:.2f}"
        )


def _compare(config: Config, folder: str, settings: list[str]) -> dict[str, dict[str, int]]:
    shape, placement = read_shape(Path(folder)), _placed(config, folder)
    assert shape is not None
    workload = workload_of(config, Manifest.load("tiny"), shape, placement)
    estimate = estimate_memory(shape, placement, workload)
    command = [sys.executable, __file__, "--folder", folder]
    command += [word for setting in settings for word in ("--set", setting)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    with subprocess.Popen(
        [*command, "--process", "trainer"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as trainer:
        assert trainer.stdin is not None
        assert trainer.stdout is not None
        trained = json.loads(trainer.stdout.readline())
        generator = subprocess.run(
            [*command, "--process", "generator", "--channel", trained["channel"]],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        trainer.stdin.close()
    measured = {"trainer": trained["peak"], "generator": json.loads(generator.stdout)["peak"]}
    return {
        process: {"estimated": estimate.of(process), "measured": size} for process, size in measured.items()
    }


def _placed(config: Config, folder: str) -> Placement:
    found, shape, wish = probe_machine(with_gpus=False), read_shape(Path(folder)), Wish("model.device", "cpu")
    assert shape is not None
    machine = Machine(found.memory_bytes, found.free_bytes, has_bfloat16=found.has_bfloat16)
    return place(machine, wish, wish, config.model.dtype, shape.parameters)


def _kept_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])


def _train(config: Config, folder: str, placement: Placement) -> None:
    from swarmd.entrypoints.trainer import TrainerProcess
    from swarmd.training.messages import StepRequest, TrainerSettings, TrainingOptions
    from swarmd.types import Completion, FinishReason, Prompt, RolloutGroup, TaskReference

    length = config.rollout.max_new_tokens or Manifest.load("tiny").max_new_tokens
    groups = tuple(
        RolloutGroup(
            group_id=f"{number:032x}",
            author="peer",
            is_local=False,
            task=TaskReference("basic_arithmetic", "digest", 1, number),
            prompt=Prompt("plain", "1 " * (PROMPT_CHARACTERS // 2)),
            completions_G=tuple(
                Completion("7 " * (length // 2), FinishReason.STOP) for _ in range(config.rollout.group_size)
            ),
            rewards_G=tuple(float(place % 2) for place in range(config.rollout.group_size)),
            policy_version=0,
            created_at=0.0,
            received_at=0.0,
            size_bytes=100,
        )
        for number in range(config.replay.local_groups + config.replay.external_groups)
    )
    process = TrainerProcess()
    with tempfile.TemporaryDirectory() as checkpoints:
        ready = process.initialise(
            TrainerSettings(
                model_path=folder,
                device=placement.trainer.device,
                dtype=placement.trainer.dtype,
                threads=1,
                seed=0,
                channel_name=f"swarmd-bench-{os.getpid()}",
                checkpoint_folder=checkpoints,
                checkpoint_keep=1,
                temperature=1.0,
                max_new_tokens=length,
                options=TrainingOptions(
                    **config.training.options(),
                    tokens_at_once=config.training.tokens_at_once or MOST_TOKENS_AT_ONCE,
                ),
                publish_dtype=placement.generator.dtype,
            )
        )
        for _ in range(2):
            reply = process.step(StepRequest(groups))
            assert reply.metrics.updates
        print(json.dumps({"peak": _kept_bytes("VmHWM"), "channel": ready.handle.name}), flush=True)
        # The generator reads the weights as long as this waits.
        sys.stdin.read()
        process.close()


def _generate(config: Config, folder: str, placement: Placement, channel: str) -> None:
    from swarmd.generation.engines import open_engine
    from swarmd.generation.messages import GeneratorSettings, LoadWeightsRequest, SampleRequest
    from swarmd.types import Prompt, WeightHandle
    from swarmd.weights.shared_memory import WeightReader

    engine = open_engine(
        GeneratorSettings(
            model_path=folder,
            engine="transformers",
            device=placement.generator.device,
            dtype=placement.generator.dtype,
            threads=1,
            seed=0,
        ),
        WeightReader.attach,
    )
    prompts = tuple(
        Prompt("plain", "1 " * (PROMPT_CHARACTERS // 2)) for _ in range(config.rollout.batch_questions)
    )
    request = SampleRequest(prompts, config.rollout.group_size, config.rollout.max_new_tokens or 16, 1.0, 0)
    engine.sample(request)
    engine.load_weights(LoadWeightsRequest(WeightHandle("shared_memory", channel), 1))
    engine.sample(request)
    # The channel is counted once, where it was made.
    print(json.dumps({"peak": _kept_bytes("VmHWM") - _kept_bytes("RssShmem")}))


if __name__ == "__main__":
    main()
