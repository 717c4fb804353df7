"""Trainer and vLLM hold the same policy through many updates: what one sampled, the other finds as likely."""

import pytest

from swarmd.entrypoints.trainer import TrainerProcess
from swarmd.generation.messages import LoadWeightsRequest, SampleRequest
from swarmd.training.messages import StepRequest, TrainerSettings, TrainingOptions
from swarmd.types import Prompt, RolloutGroup, TaskReference, WeightHandle
from swarmd.weights.shared_memory import KIND

PROMPTS = tuple(
    Prompt("plain", f"<question>Calculate {a} + {b}.<answer>") for a, b in ((3, 4), (12, 305), (0, 9))
)


@pytest.fixture
def trainer(served, channel_name, tmp_path):
    trainer = TrainerProcess()
    trainer.initialise(
        TrainerSettings(
            model_path=str(served.folder),
            device="cpu",
            dtype="float32",
            threads=1,
            seed=0,
            channel_name=channel_name,
            checkpoint_folder=str(tmp_path / "checkpoints"),
            checkpoint_keep=1,
            temperature=0.8,
            max_new_tokens=16,
            options=TrainingOptions(learning_rate=1e-3, warmup_steps=0),
        )
    )
    yield trainer
    trainer.close()


def rollouts(reply):
    return tuple(
        RolloutGroup(
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
        for number, (prompt, sampled) in enumerate(zip(PROMPTS, reply.groups, strict=True))
    )


def test_vllm_samples_from_exactly_the_policy_that_the_trainer_has_after_fifty_updates(
    served, trainer, channel_name
):
    handle, gaps = WeightHandle(KIND, channel_name), []
    for version in range(51):
        reply = served.engine.load_weights(LoadWeightsRequest(handle, version))
        assert reply.version == version
        sampled = served.engine.sample(SampleRequest(PROMPTS, 6, 16, 0.8, seed=version))
        metrics = trainer.step(StepRequest(rollouts(sampled))).metrics
        assert metrics.updates
        gaps.append(metrics.sampler_gap)
    assert max(gaps) < 1e-4
    # Groups of long ago are far from the policy of now, so the agreement above means something.
    assert abs(trainer.step(StepRequest(rollouts(sampled))).metrics.mean_ratio - 1.0) > 1e-4
