"""A trainer that learns and a generator that follows it: how far apart the two are on the way."""

from dataclasses import dataclass

import torch

from swarmd.entrypoints.trainer import TrainerProcess
from swarmd.generation.generator import Engine
from swarmd.generation.messages import LoadWeightsRequest, SampleReply, SampleRequest
from swarmd.models.tokenization import encode_prompt, load_tokenizer
from swarmd.training.messages import StepRequest, TrainerReady, TrainerSettings, TrainingOptions
from swarmd.types import Prompt, RolloutGroup, TaskReference

PROMPTS = tuple(
    Prompt("plain", f"<question>Calculate {a} + {b}.<answer>") for a, b in ((3, 4), (12, 305), (0, 9))
)
TEMPERATURE = 0.8
EVERY = 10
"""Versions between two comparisons of every sampled token."""


@dataclass(frozen=True)
class Agreement:
    """Largest differences, nats, over all versions on the way."""

    canary: float
    """Of the tokens of the canary's text, at every version."""
    sampled: float
    """Of sampled tokens, at every tenth version and the last."""
    moved: float
    """Of the canary's tokens between the first version and the last: how far the policy has come."""


def trainer_settings(model_path: str, channel_name: str, checkpoint_folder: str) -> TrainerSettings:
    """A trainer whose policy changes a lot with each step."""
    return TrainerSettings(
        model_path=model_path,
        device="cpu",
        dtype="float32",
        threads=1,
        seed=0,
        channel_name=channel_name,
        checkpoint_folder=checkpoint_folder,
        checkpoint_keep=1,
        temperature=TEMPERATURE,
        max_new_tokens=16,
        options=TrainingOptions(learning_rate=1e-3, warmup_steps=0),
    )


def sample(engine: Engine, seed: int) -> SampleReply:
    """Six completions for each prompt."""
    return engine.sample(SampleRequest(PROMPTS, 6, 16, TEMPERATURE, seed=seed))


def rollouts(reply: SampleReply) -> tuple[RolloutGroup, ...]:
    """What was sampled, as own groups with signal."""
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


def train_and_follow(
    trainer: TrainerProcess, ready: TrainerReady, engine: Engine, model_path: str, updates: int
) -> Agreement:
    """Take `updates` steps, each on what the engine samples from the version before."""
    tokenizer = load_tokenizer(model_path)
    first_T = expected_T = ready.canary_logprobs_T
    canary = sampled_off = 0.0
    for version in range(updates + 1):
        reply = engine.load_weights(LoadWeightsRequest(ready.handle, version))
        assert reply.version == version
        found = engine.canary()
        assert found.version == version
        canary = max(canary, _largest(expected_T, found.logprobs_T))
        sampled = sample(engine, seed=version)
        if version % EVERY == 0 or version == updates:
            sampled_off = max(sampled_off, _sampled_difference(trainer, tokenizer, sampled))
        if version < updates:
            step = trainer.step(StepRequest(rollouts(sampled), canary=True))
            assert step.policy_version == version + 1
            assert step.canary_logprobs_T is not None
            expected_T = step.canary_logprobs_T
    return Agreement(canary, sampled_off, _largest(first_T, expected_T))


def _sampled_difference(trainer: TrainerProcess, tokenizer, reply: SampleReply) -> float:
    policy, worst = trainer._need_running().trainer.policy, 0.0
    for prompt, group in zip(PROMPTS, reply.groups, strict=True):
        prompt_ids = encode_prompt(tokenizer, prompt)
        for completion in group.completions_G:
            logprobs_S = policy.text_logprobs([*prompt_ids, *completion.token_ids_T], TEMPERATURE)
            off_T = logprobs_S[len(prompt_ids) - 1 :] - torch.tensor(completion.logprobs_T)
            worst = max(worst, float(off_T.abs().max()))
    return worst


def _largest(expected_T: tuple[float, ...], found_T: tuple[float, ...]) -> float:
    return max(abs(expected - found) for expected, found in zip(expected_T, found_T, strict=True))
