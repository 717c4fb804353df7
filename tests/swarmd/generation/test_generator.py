import subprocess
import sys

import pytest

from swarmd.errors import WorkerError
from swarmd.generation.generator import Generator
from swarmd.generation.messages import (
    LOAD_WEIGHTS,
    SAMPLE,
    LoadWeightsReply,
    LoadWeightsRequest,
    SampleReply,
    SampleRequest,
)
from swarmd.types import Completion, FinishReason, Prompt, SampledGroup, WeightHandle

HANDLE = WeightHandle(kind="shared_memory", name="x")
PROMPT = Prompt(style="plain", text="?")


def group(size: int) -> SampledGroup:
    return SampledGroup((Completion("1", FinishReason.STOP),) * size, policy_version=1)


def generator_that_answers(reply, calls=None) -> Generator:
    async def call(method, request, timeout_seconds):
        if calls is not None:
            calls.append((method, request, timeout_seconds))
        return reply

    return Generator(call, timeout_seconds=7.0)


async def test_sampling_asks_the_process_with_the_deadline():
    calls = []
    request = SampleRequest((PROMPT, PROMPT), 3, 16, 1.0, 0)
    reply = SampleReply((group(3), group(3)), 6, 0.1)
    assert await generator_that_answers(reply, calls).sample(request) is reply
    assert calls == [(SAMPLE, request, 7.0)]


@pytest.mark.parametrize("groups", [(), (group(3),), (group(3), group(2)), (group(3),) * 3])
async def test_ragged_answer_is_an_error_of_the_worker(groups):
    generator = generator_that_answers(SampleReply(groups, 0, 0.1))
    with pytest.raises(WorkerError, match="2 prompts"):
        await generator.sample(SampleRequest((PROMPT, PROMPT), 3, 16, 1.0, 0))


async def test_loading_weights_tells_the_version_that_was_loaded():
    calls = []
    generator = generator_that_answers(LoadWeightsReply(version=6, seconds=0.1), calls)
    assert await generator.load_weights(HANDLE, 5) == 6
    assert calls == [(LOAD_WEIGHTS, LoadWeightsRequest(HANDLE, 5), 7.0)]


def test_daemon_side_imports_no_torch():
    code = "import sys, swarmd.generation.generator; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
