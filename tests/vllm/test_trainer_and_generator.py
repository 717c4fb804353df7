"""Trainer and vLLM hold the same policy through many updates: what one sampled, the other finds as likely."""

import pytest
from agreement import rollouts, sample, train_and_follow, trainer_settings

from swarmd.entrypoints.trainer import TrainerProcess
from swarmd.generation import vllm_api
from swarmd.generation.messages import LoadWeightsRequest
from swarmd.loops.canary import TOLERANCES, difference
from swarmd.models.canary import canary_tokens
from swarmd.training.messages import StepRequest


@pytest.fixture
def trainer(channel_name):
    trainer = TrainerProcess()
    yield trainer
    trainer.close()


def test_vllm_has_exactly_the_policy_of_the_trainer_through_fifty_updates(
    served, trainer, channel_name, tmp_path
):
    path = str(served.folder)
    ready = trainer.initialise(trainer_settings(path, channel_name, str(tmp_path / "checkpoints")))
    found = train_and_follow(trainer, ready, served.engine, path, updates=50)
    print(f"vLLM, {'tied' if served.tied else 'untied'}, fifty updates: {found}")
    assert max(found.canary, found.sampled) <= 1e-4
    # The policy is far from where it began, so the agreement above means something.
    assert found.moved > 0.1
    # Groups of before an update are far from the policy after it.
    groups = rollouts(sample(served.engine, seed=50))
    assert trainer.step(StepRequest(groups)).metrics.sampler_gap <= 1e-4
    assert abs(trainer.step(StepRequest(groups)).metrics.mean_ratio - 1.0) > 1e-4


def test_the_canary_follows_each_version_sees_weights_that_went_wrong_and_loading_again_heals(
    served, trainer, channel_name, tokenizer, tmp_path
):
    engine, path = served.engine, str(served.folder)
    ready = trainer.initialise(trainer_settings(path, channel_name, str(tmp_path / "checkpoints")))
    engine.load_weights(LoadWeightsRequest(ready.handle, 0))

    def off(expected_T):
        return difference(expected_T, engine.canary().logprobs_T, "float32")

    assert off(ready.canary_logprobs_T) < 1e-4
    step = trainer.step(StepRequest(rollouts(sample(engine, seed=0)), canary=True))
    assert off(step.canary_logprobs_T) > TOLERANCES["float32"]
    engine.load_weights(LoadWeightsRequest(ready.handle, 1))
    assert engine.canary().version == step.policy_version == 1
    assert off(step.canary_logprobs_T) < 1e-4
    # What vLLM computes for it is never found in the prefix cache, which holds whole blocks only.
    assert len(canary_tokens(tokenizer)) < vllm_api._BLOCK_TOKENS

    # The worker goes back to the weights of the model folder, and nobody is told.
    engine._loop.run_until_complete(engine._server._engine.collective_rpc("reload_weights"))
    assert engine.canary().version == 1
    assert off(step.canary_logprobs_T) > TOLERANCES["float32"]
    engine.load_weights(LoadWeightsRequest(ready.handle, 1))
    assert off(step.canary_logprobs_T) > TOLERANCES["float32"]
    engine.load_weights(LoadWeightsRequest(ready.handle, 1, again=True))
    assert off(step.canary_logprobs_T) < 1e-4
