"""Trainer and generator hold the same policy: what one sampled, the other finds as likely."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from agreement import rollouts, sample, train_and_follow, trainer_settings
from random_models import make_model_folder
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from swarmd.entrypoints.trainer import TrainerProcess
from swarmd.generation.engines import open_engine
from swarmd.generation.messages import GeneratorSettings, LoadWeightsRequest
from swarmd.models.tokenization import load_tokenizer
from swarmd.training.messages import SaveRequest, StepRequest
from swarmd.weights.shared_memory import WeightReader


@pytest.fixture(params=["tied", "untied"])
def model_path(request, tmp_path) -> Path:
    return make_model_folder(tmp_path / request.param, tied=request.param == "tied", chat=False)


@pytest.fixture
def trainer() -> Iterator[TrainerProcess]:
    trainer = TrainerProcess()
    yield trainer
    trainer.close()


def open_generator(model_path):
    settings = GeneratorSettings(
        model_path=str(model_path), engine="transformers", device="cpu", dtype="auto", threads=1, seed=1
    )
    return open_engine(settings, WeightReader.attach)


def test_the_generator_has_exactly_the_policy_of_the_trainer_through_fifty_updates(
    model_path, trainer, tmp_path, request
):
    name = f"swarmd-join-{os.getpid()}"
    ready = trainer.initialise(trainer_settings(str(model_path), name, str(tmp_path / "checkpoints")))
    generator = open_generator(model_path)
    assert generator.ready.tokenizer_fingerprint == ready.tokenizer_fingerprint
    found = train_and_follow(trainer, ready, generator, str(model_path), updates=50)
    print(f"transformers, {request.node.callspec.id}, fifty updates: {found}")
    assert max(found.canary, found.sampled) <= 1e-4
    # The policy is far from where it began, so the agreement above means something.
    assert found.moved > 0.1

    # What the step tells of the sampler says the same.
    groups = rollouts(sample(generator, seed=50))
    metrics = trainer.step(StepRequest(groups)).metrics
    assert metrics.sampler_gap < 1e-4
    assert metrics.mean_ratio == pytest.approx(1.0, abs=1e-4)
    assert abs(trainer.step(StepRequest(groups)).metrics.mean_ratio - 1.0) > 1e-4

    # Updated in place and loaded afresh must be the same model.
    saved = trainer.save(SaveRequest(b"", round=4))
    fresh_path = tmp_path / "fresh"
    AutoConfig.from_pretrained(model_path).save_pretrained(fresh_path)
    load_tokenizer(model_path).save_pretrained(fresh_path)
    weights = load_file(Path(saved.path) / "weights.safetensors")
    save_file(weights, fresh_path / "model.safetensors", metadata={"format": "pt"})
    generator.load_weights(LoadWeightsRequest(ready.handle, 52))
    updated, fresh = sample(generator, seed=9), sample(open_generator(fresh_path), seed=9)
    for one, other in zip(updated.groups, fresh.groups, strict=True):
        for left, right in zip(one.completions_G, other.completions_G, strict=True):
            assert left.token_ids_T == right.token_ids_T
            assert left.logprobs_T == pytest.approx(right.logprobs_T, abs=1e-4)
