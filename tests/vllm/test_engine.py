"""The promises of every engine, kept by vLLM, and what it promises beyond them. `served` starts it once for a
tied and once for an untied model, and the tests share it.
"""

import threading
import time

from engine_contract import *  # noqa: F403
from engine_contract import PROMPTS, TOLERANCE, completions, request, tokens

from swarmd.generation.messages import LoadWeightsRequest
from swarmd.types import Prompt


def test_auto_takes_vllm_and_says_so(served):
    ready = served.engine.ready
    assert (ready.engine, ready.device, ready.dtype) == ("vllm", "cpu", "float32")
    assert ready.context_tokens == 512
    assert "vLLM 0.32" in ready.note


def test_many_long_prompts_are_sampled_with_seeds(served):
    # More prompt tokens than one step takes: requests with seeds of their own end vLLM 0.32 here.
    prompts = tuple(Prompt(style="plain", text=f"{number} " * 150) for number in range(30))
    reply = served.engine.sample(request(prompts=prompts, group_size=4, max_new_tokens=2))
    again = served.engine.sample(request(prompts=prompts, group_size=4, max_new_tokens=2))
    assert tokens(reply) == tokens(again)


def test_new_weights_are_taken_while_completions_are_in_flight(served, channel, difference):
    models = {1: channel(1, seed=10)}
    sampled = threading.Event()

    def train() -> None:
        while not sampled.wait(0.4):
            version = len(models) + 1
            models[version] = channel.publish(version, seed=10 + version)

    trainer = threading.Thread(target=train)
    trainer.start()
    try:
        reply = served.engine.sample(request(group_size=24, max_new_tokens=400))
    finally:
        sampled.set()
        trainer.join()
    spans = [completion.versions_T for completion in completions(reply) if completion.versions_T]
    assert spans, "no completion met an update"
    assert all(list(versions_T) == sorted(versions_T) for versions_T in spans)
    assert {group.policy_version for group in reply.groups} == {1}
    assert difference(reply, PROMPTS, models) < TOLERANCE
    # What was followed needs no second load.
    latest = max(models)
    started = time.monotonic()
    assert served.engine.load_weights(LoadWeightsRequest(channel.handle, latest)).version == latest
    assert served.engine.load_weights(LoadWeightsRequest(channel.handle, latest)).seconds < (
        time.monotonic() - started
    )
