"""Trainer and generator hold the same policy: what one sampled, the other finds as likely."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

import swarmd.models
from swarmd.entrypoints.trainer import TrainerProcess
from swarmd.generation.engines import open_engine
from swarmd.generation.messages import GeneratorSettings, LoadWeightsRequest, SampleRequest
from swarmd.models.tokenization import load_tokenizer
from swarmd.training.messages import SaveRequest, StepRequest, TrainerSettings, TrainingOptions
from swarmd.types import Prompt, RolloutGroup, SampledGroup, TaskReference
from swarmd.weights.shared_memory import WeightReader

TINY = Path(swarmd.models.__file__).parent / "tiny"
PROMPTS = tuple(
    Prompt("plain", f"<question>Calculate {a} + {b}.<answer>") for a, b in ((3, 4), (12, 305), (0, 9))
)


@pytest.fixture(params=["tied", "untied"])
def model_path(request, tmp_path) -> Path:
    if request.param == "tied":
        return TINY
    tokenizer = load_tokenizer(TINY)
    config = AutoConfig.from_pretrained(TINY)
    config.tie_word_embeddings = False
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "untied")
    tokenizer.save_pretrained(tmp_path / "untied")
    return tmp_path / "untied"


@pytest.fixture
def trainer():
    trainer = TrainerProcess()
    yield trainer
    trainer.close()


def open_generator(model_path):
    settings = GeneratorSettings(
        model_path=str(model_path), engine="transformers", device="cpu", dtype="auto", threads=1, seed=1
    )
    return open_engine(settings, WeightReader.attach)


def as_group(number: int, prompt: Prompt, sampled: SampledGroup) -> RolloutGroup:
    return RolloutGroup(
        group_id=f"{number:032x}",
        author="self",
        is_local=True,
        task=TaskReference("basic_arithmetic", "digest", 1, number),
        prompt=prompt,
        completions_G=sampled.completions_G,
        rewards_G=tuple(float(row % 3 == 0) for row in range(len(sampled.completions_G))),
        policy_version=sampled.policy_version,
        created_at=0.0,
        received_at=0.0,
        size_bytes=100,
    )


def sample(generator, seed: int):
    reply = generator.sample(
        SampleRequest(PROMPTS, group_size=6, max_new_tokens=16, temperature=0.8, seed=seed)
    )
    return tuple(
        as_group(number, prompt, sampled)
        for number, (prompt, sampled) in enumerate(zip(PROMPTS, reply.groups, strict=True))
    )


def test_the_generator_samples_from_exactly_the_policy_that_the_trainer_has(model_path, trainer, tmp_path):
    ready = trainer.initialise(
        TrainerSettings(
            model_path=str(model_path),
            device="cpu",
            dtype="auto",
            threads=1,
            seed=0,
            channel_name=f"swarmd-join-{os.getpid()}",
            checkpoint_folder=str(tmp_path / "checkpoints"),
            checkpoint_keep=1,
            temperature=0.8,
            max_new_tokens=16,
            options=TrainingOptions(learning_rate=3e-3, warmup_steps=0),
        )
    )
    generator = open_generator(model_path)
    assert generator.ready.tokenizer_fingerprint == ready.tokenizer_fingerprint
    for version in range(3):
        assert generator.load_weights(LoadWeightsRequest(ready.handle, version)).version == version
        groups = sample(generator, seed=version)
        reply = trainer.step(StepRequest(groups))
        assert reply.policy_version == version + 1
        assert reply.metrics.sampler_gap < 1e-4
        assert reply.metrics.mean_ratio == pytest.approx(1.0, abs=1e-4)
    # The groups of before are far from the policy of now, so the agreement above means something.
    assert abs(trainer.step(StepRequest(groups)).metrics.mean_ratio - 1.0) > 1e-3

    # Updated in place and loaded afresh must be the same model.
    saved = trainer.save(SaveRequest(b"", round=4))
    fresh_path = tmp_path / "fresh"
    AutoConfig.from_pretrained(model_path).save_pretrained(fresh_path)
    load_tokenizer(model_path).save_pretrained(fresh_path)
    weights = load_file(Path(saved.path) / "weights.safetensors")
    save_file(weights, fresh_path / "model.safetensors", metadata={"format": "pt"})
    generator.load_weights(LoadWeightsRequest(ready.handle, 4))
    updated, fresh = sample(generator, seed=9), sample(open_generator(fresh_path), seed=9)
    for one, other in zip(updated, fresh, strict=True):
        for left, right in zip(one.completions_G, other.completions_G, strict=True):
            assert left.token_ids_T == right.token_ids_T
            assert left.logprobs_T == pytest.approx(right.logprobs_T, abs=1e-4)
