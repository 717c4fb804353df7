"""Real architectures with random weights, through both rooms: sampled, learned from, published, and
sampled again from what was learned.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from random_models import END, TURN_END, make_model_folder, make_tokenizer

from swarmd.entrypoints.trainer import TrainerProcess
from swarmd.generation.engines import open_engine
from swarmd.generation.messages import GeneratorSettings, LoadWeightsRequest, SampleRequest
from swarmd.models.tokenization import load_tokenizer
from swarmd.training.messages import StepRequest, TrainerSettings, TrainingOptions
from swarmd.types import FinishReason, Prompt, RolloutGroup, TaskReference
from swarmd.weights.shared_memory import WeightReader

ARCHITECTURES = {
    "qwen2 tied": {},
    "qwen2 untied": {"tied": False},
    "qwen3, wide heads": {"kind": "qwen3", "head_dim": 32},
    "llama, sharded, plain, no pad token": {
        "kind": "llama",
        "tied": False,
        "shards": 3,
        "chat": False,
        "pad": False,
        "begin": True,
    },
}


@pytest.fixture
def trainer() -> Iterator[TrainerProcess]:
    torch.set_num_threads(1)
    process = TrainerProcess()
    yield process
    process.close()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_model_is_sampled_learned_from_and_sampled_again(
    name: str, tmp_path: Path, trainer: TrainerProcess
) -> None:
    options = ARCHITECTURES[name]
    folder = make_model_folder(tmp_path / "model", **options)
    style = "chat" if options.get("chat", True) else "plain"
    prompts = tuple(Prompt(style, f"{number} + 1 = ?") for number in range(2))
    ready = trainer.initialise(
        TrainerSettings(
            model_path=str(folder),
            device="cpu",
            dtype="float32",
            threads=1,
            seed=0,
            channel_name=f"swarmd-architectures-{os.getpid()}",
            checkpoint_folder=str(tmp_path / "checkpoints"),
            checkpoint_keep=1,
            temperature=1.0,
            max_new_tokens=8,
            options=TrainingOptions(learning_rate=1e-3, warmup_steps=0),
        )
    )
    settings = GeneratorSettings(str(folder), "transformers", "cpu", "float32", threads=1, seed=0)
    engine = open_engine(settings, WeightReader.attach)
    try:
        assert engine.ready.tokenizer_fingerprint == ready.tokenizer_fingerprint
        engine.load_weights(LoadWeightsRequest(ready.handle, 0))
        for version in (0, 1):
            reply = engine.sample(SampleRequest(prompts, 4, 8, 1.0, seed=version))
            groups = tuple(
                RolloutGroup(
                    group_id=f"{number:032x}",
                    author="self",
                    is_local=True,
                    task=TaskReference("basic_arithmetic", "digest", 1, number),
                    prompt=prompt,
                    completions_G=sampled.completions_G,
                    rewards_G=(1.0, 0.0, 0.0, 1.0),
                    policy_version=sampled.policy_version,
                    created_at=0.0,
                    received_at=0.0,
                    size_bytes=100,
                )
                for number, (prompt, sampled) in enumerate(zip(prompts, reply.groups, strict=True))
            )
            metrics = trainer.step(StepRequest(groups)).metrics
            assert metrics.updates == 1
            assert metrics.sampler_gap is not None
            assert metrics.sampler_gap < 1e-4
            assert engine.load_weights(LoadWeightsRequest(ready.handle, version + 1)).version == version + 1
    finally:
        engine.close()


def test_each_of_several_end_tokens_ends_a_completion(tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "model")
    ends = set(make_tokenizer().convert_tokens_to_ids([END, TURN_END]))
    settings = GeneratorSettings(str(folder), "transformers", "cpu", "float32", threads=1, seed=0)
    engine = open_engine(settings, WeightReader.attach)
    prompts = tuple(Prompt("chat", f"{number}") for number in range(16))
    reply = engine.sample(SampleRequest(prompts, 16, 40, 1.0, seed=0))
    engine.close()
    stopped = [
        completion
        for group in reply.groups
        for completion in group.completions_G
        if completion.finish_reason is FinishReason.STOP
    ]
    assert {completion.token_ids_T[-1] for completion in stopped} == ends
    assert not any(mark in completion.text for completion in stopped for mark in (END, TURN_END))


def test_a_tokenizer_without_a_pad_token_stays_without_one(tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "model", pad=False, chat=False)
    assert load_tokenizer(folder).pad_token_id is None
