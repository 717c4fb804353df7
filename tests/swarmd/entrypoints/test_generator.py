import asyncio
import os
import signal
import uuid
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import swarmd.models
from swarmd.errors import WorkerError
from swarmd.generation.generator import Generator
from swarmd.generation.messages import INITIALISE, SAMPLE, GeneratorSettings, SampleRequest
from swarmd.types import Prompt, WeightHandle
from swarmd.weights.segment import Segment
from swarmd.weights.shared_memory import KIND, WeightWriter
from swarmd.workers.supervisor import Worker, WorkerLimits

TINY = Path(swarmd.models.__file__).parent / "tiny"
SETTINGS = GeneratorSettings(
    model_path=str(TINY), engine="transformers", device="cpu", dtype="auto", threads=1, seed=0
)
PROMPTS = tuple(Prompt(style="plain", text=f"<question>{n} + 1<answer>") for n in range(3))


@pytest.fixture
def channel_name():
    name = f"swarmd-test-{uuid.uuid4().hex[:8]}"
    yield name
    Segment.remove(name)


@asynccontextmanager
async def running_generator(tmp_path, ready_list):
    async def initialise(worker: Worker) -> None:
        ready_list.append(await worker.call(INITIALISE, SETTINGS, 120))

    worker = Worker(
        "generator",
        "swarmd.entrypoints.generator",
        WorkerLimits(restart_min_seconds=0.05),
        initialise,
        log_path=tmp_path / "generator.log",
        on_event=lambda _: None,
    )
    task = asyncio.create_task(worker.run())
    try:
        await asyncio.wait_for(worker.wait_ready(), 120)
        yield worker
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_process_samples_loads_weights_and_survives_a_refusal(tmp_path, channel_name):
    ready_list = []
    async with running_generator(tmp_path, ready_list) as worker:
        generator = Generator(worker.call, timeout_seconds=60)
        request = SampleRequest(PROMPTS, 2, 8, 1.0, 0)
        before = await generator.sample(request)
        pid = worker.pid
        with pytest.raises(WorkerError, match="no shared memory"):
            await generator.load_weights(WeightHandle(kind=KIND, name=channel_name), 1)

        model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.5)
        tensors = dict(model.named_parameters())
        with WeightWriter.create(channel_name, tensors) as writer:
            writer.publish(4, tensors)
            assert await generator.load_weights(writer.handle, 4) == 4
        after = await generator.sample(request)

        assert worker.pid == pid
        assert ready_list[0].engine == "transformers"
        assert {group.policy_version for group in after.groups} == {4}
        assert before.groups != after.groups


async def test_killed_process_is_initialised_again_and_samples_the_same(tmp_path):
    ready_list = []
    async with running_generator(tmp_path, ready_list) as worker:
        request = SampleRequest(PROMPTS, 2, 8, 1.0, 0)
        before = await worker.call(SAMPLE, request, 60)
        too_long = SampleRequest((Prompt(style="plain", text="1" * 600),), 2, 8, 1.0, 0)
        with pytest.raises(WorkerError, match="context"):
            await worker.call(SAMPLE, too_long, 60)

        os.kill(worker.pid, signal.SIGKILL)
        await asyncio.sleep(0.2)
        after = await worker.call(SAMPLE, request, 120)
        assert after.groups == before.groups
        assert len(ready_list) == 2
