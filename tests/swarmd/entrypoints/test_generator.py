import asyncio
import os
import signal
import uuid
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import swarmd.models
from swarmd.errors import WorkerError
from swarmd.generation.generator import Generator
from swarmd.generation.messages import INITIALISE, SAMPLE, GeneratorSettings, SampleRequest
from swarmd.generation.transformers import TransformersEngine
from swarmd.models.tokenization import load_tokenizer
from swarmd.types import Prompt, WeightHandle
from swarmd.weights.channel import attach
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


# A generator whose model takes no more tensors in the middle of its first update, as when memory fails.
FAILS_ONCE = """
import os, sys, torch
from swarmd.entrypoints import generator
copy_, left = torch.Tensor.copy_, [5]
def failing_copy_(*arguments):
    left[0] -= 1
    if left[0] == 0 and not os.path.exists(os.environ["MARK"]):
        open(os.environ["MARK"], "w").close()
        raise RuntimeError("no more memory")
    return copy_(*arguments)
load_weights = generator._Generator.load_weights
def load(self, request):
    torch.Tensor.copy_ = failing_copy_
    try:
        return load_weights(self, request)
    finally:
        torch.Tensor.copy_ = copy_
generator._Generator.load_weights = load
generator.main()
"""


@asynccontextmanager
async def running_generator(
    tmp_path, ready_list, settings=SETTINGS, module="swarmd.entrypoints.generator", environment=None
):
    async def initialise(worker: Worker) -> None:
        ready_list.append(await worker.call(INITIALISE, settings, 120))

    worker = Worker(
        "generator",
        module,
        WorkerLimits(restart_min_seconds=0.05),
        initialise,
        environment=environment,
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

        cut_off = asyncio.create_task(worker.call(SAMPLE, request, 60))
        await asyncio.sleep(0)
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(WorkerError):
            await cut_off
        after = await worker.call(SAMPLE, request, 120)
        assert after.groups == before.groups
        assert len(ready_list) == 2


@pytest.mark.parametrize("tied", [True, False])
async def test_an_update_that_fails_midway_ends_the_process_and_the_next_one_has_all_of_it(
    tmp_path, channel_name, tied
):
    (tmp_path / "failing_generator.py").write_text(FAILS_ONCE)
    environment = {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}", "MARK": f"{tmp_path}/mark"}
    folder = TINY
    if not tied:
        folder = tmp_path / "untied"
        config = AutoConfig.from_pretrained(TINY)
        config.tie_word_embeddings = False
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        load_tokenizer(TINY).save_pretrained(folder)
    settings = msgspec.structs.replace(SETTINGS, model_path=str(folder))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ready_list = []
    async with running_generator(tmp_path, ready_list, settings, "failing_generator", environment) as worker:
        generator = Generator(worker.call, timeout_seconds=120)
        for parameter in model.parameters():
            parameter.requires_grad_(False).mul_(0.5)
        tensors = model.state_dict()
        with WeightWriter.create(channel_name, tensors) as writer:
            writer.publish(4, tensors)
            with pytest.raises(WorkerError, match="no more memory"):
                await generator.load_weights(writer.handle, 4)
            assert await generator.load_weights(writer.handle, 4) == 4
        assert len(ready_list) == 2
        request = SampleRequest(PROMPTS, 2, 8, 1.0, 0)
        updated = await generator.sample(request)
    model.save_pretrained(tmp_path / "fresh")
    load_tokenizer(TINY).save_pretrained(tmp_path / "fresh")
    fresh = TransformersEngine.load(
        msgspec.structs.replace(SETTINGS, model_path=str(tmp_path / "fresh")), attach
    ).sample(request)
    assert [group.completions_G for group in updated.groups] == [
        group.completions_G for group in fresh.groups
    ]
