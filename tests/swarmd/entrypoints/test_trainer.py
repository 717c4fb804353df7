"""The trainer process as the daemon uses it: the bundled model, real processes, real shared memory."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file

import swarmd.models
from swarmd.entrypoints.trainer import TrainerProcess
from swarmd.errors import CheckpointError, ConfigError, TrainingError
from swarmd.models.canary import MOST_TOKENS
from swarmd.training.messages import (
    INITIALISE,
    SAVE,
    STEP,
    SaveRequest,
    StepRequest,
    TrainerReady,
    TrainerSettings,
    TrainingOptions,
)
from swarmd.types import Completion, FinishReason, Prompt, RolloutGroup, TaskReference
from swarmd.weights.channel import attach
from swarmd.weights.shared_memory import WeightReader
from swarmd.workers.supervisor import Worker, WorkerLimits

TINY = Path(swarmd.models.__file__).parent / "tiny"
LIMITS = WorkerLimits(max_fast_failures=2, restart_min_seconds=0.1)


def group(answers: dict[str, float]) -> RolloutGroup:
    return RolloutGroup(
        group_id="00" * 16,
        author="peer",
        is_local=False,
        task=TaskReference("basic_arithmetic", "digest", 1, 2),
        prompt=Prompt("plain", "<question>Calculate 3 + 4.<answer>"),
        completions_G=tuple(Completion(text, FinishReason.STOP) for text in answers),
        rewards_G=tuple(answers.values()),
        policy_version=0,
        created_at=0.0,
        received_at=0.0,
        size_bytes=100,
    )


LESSON = StepRequest((group({"7": 1.0, "12": 0.0}), group({"8": 0.0, "7": 1.0, "seven": 0.0})))
NO_LESSON = StepRequest((group({"8": 0.0, "12": 0.0}),))


@pytest.fixture
def settings(tmp_path) -> TrainerSettings:
    return TrainerSettings(
        model_path=str(TINY),
        device="cpu",
        dtype="auto",
        threads=1,
        seed=4,
        channel_name=f"swarmd-test-{os.getpid()}-{tmp_path.name[-12:]}",
        checkpoint_folder=str(tmp_path / "checkpoints"),
        checkpoint_keep=2,
        temperature=1.0,
        max_new_tokens=16,
        options=TrainingOptions(inner_epochs=2, minibatches=2),
    )


@contextlib.asynccontextmanager
async def running_trainer(settings: TrainerSettings) -> AsyncIterator[tuple[Worker, TrainerReady]]:
    ready: list[TrainerReady] = []

    async def initialise(worker: Worker) -> None:
        ready.append(await worker.call(INITIALISE, settings, 60))

    worker = Worker("trainer", "swarmd.entrypoints.trainer", LIMITS, initialise)
    run = asyncio.create_task(worker.run())
    try:
        await asyncio.wait(
            [run, asyncio.create_task(worker.wait_ready())], return_when=asyncio.FIRST_COMPLETED
        )
        if run.done():
            await run
        yield worker, ready[-1]
    finally:
        run.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await run


@pytest.fixture
def process():
    process = TrainerProcess()
    yield process
    process.close()


async def test_a_trainer_publishes_steps_saves_and_resumes_bit_for_bit_in_a_new_process(settings):
    start = load_file(TINY / "model.safetensors")
    async with running_trainer(settings) as (worker, ready):
        assert (ready.policy_version, ready.steps, ready.resumed_from, ready.node_state) == (0, 0, None, None)
        assert (ready.device, ready.dtype, ready.notes) == ("cpu", "float32", ())
        assert ready.parameters == sum(tensor.numel() for tensor in start.values())
        with WeightReader.attach(ready.handle) as reader:
            version, published = reader.read()
            assert version == 0
            assert published.keys() == start.keys()
            assert all(torch.equal(published[name], start[name].float()) for name in start)

            reply = await worker.call(STEP, LESSON, 60)
            assert (reply.policy_version, reply.metrics.updates) == (1, 4)
            version, first = reader.read()
            assert version == 1
            assert not torch.equal(first["model.embed_tokens.weight"], published["model.embed_tokens.weight"])

            reply = await worker.call(STEP, NO_LESSON, 60)
            assert (reply.policy_version, reply.metrics.updates) == (1, 0)
            assert reader.latest_version() == 1

            saved = await worker.call(SAVE, SaveRequest(b"\x00state", round=2), 60)
            assert Path(saved.path).parent == Path(settings.checkpoint_folder)
            assert saved.bytes > 3 * 4 * ready.parameters
            expected = [await worker.call(STEP, LESSON, 60) for _ in range(2)]
            _, last = reader.read()
    with pytest.raises(Exception, match=settings.channel_name):
        WeightReader.attach(ready.handle)

    async with running_trainer(settings) as (worker, ready):
        assert (ready.policy_version, ready.steps, ready.resumed_from) == (1, 4, saved.path)
        assert ready.node_state == b"\x00state"
        with WeightReader.attach(ready.handle) as reader:
            version, resumed = reader.read()
            assert version == 1
            assert all(torch.equal(resumed[name], first[name]) for name in first)
            actual = [await worker.call(STEP, LESSON, 60) for _ in range(2)]
            assert [(r.policy_version, r.metrics.loss, r.metrics.grad_norm) for r in actual] == [
                (r.policy_version, r.metrics.loss, r.metrics.grad_norm) for r in expected
            ]
            _, again = reader.read()
            assert all(torch.equal(again[name], last[name]) for name in last)


def test_a_malformed_group_refuses_the_step_and_the_next_one_works(settings, process):
    process.initialise(settings)
    with pytest.raises(TrainingError, match="rewards must be finite"):
        process.step(StepRequest((group({"7": 1.0, "12": float("nan")}),)))
    assert process.step(LESSON).policy_version == 1


def test_the_canary_is_told_at_the_start_and_when_a_step_asks_for_it(settings, process):
    ready = process.initialise(settings)
    first_T = ready.canary_logprobs_T
    assert len(first_T) == MOST_TOKENS - 1
    assert all(value < 0 for value in first_T)
    assert process.step(NO_LESSON).canary_logprobs_T is None
    same = process.step(StepRequest(NO_LESSON.groups, canary=True))
    assert (same.policy_version, same.canary_logprobs_T) == (0, first_T)
    moved = process.step(StepRequest(LESSON.groups, canary=True))
    assert moved.policy_version == 1
    assert moved.canary_logprobs_T != first_T
    # After a resume it is that of the checkpoint.
    process.save(SaveRequest(b"", round=1))
    assert process.initialise(settings).canary_logprobs_T == moved.canary_logprobs_T


def test_a_checkpoint_of_other_options_is_refused_in_a_line_and_what_killed_nodes_left_is_removed(
    settings, process
):
    process.initialise(settings)
    process.save(SaveRequest(b"", round=1))
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    leftover = Path(f"/dev/shm/swarmd-{dead.pid}-{os.urandom(4).hex()}")
    leftover.write_bytes(b"weights")
    changed = msgspec.structs.replace(settings, options=TrainingOptions(lora_rank=4))
    with pytest.raises(
        CheckpointError, match=r"the shapes do not match: tensor .* move the folder away"
    ) as caught:
        process.initialise(changed)
    assert "\n" not in str(caught.value)
    assert not leftover.exists()


def test_damage_to_all_checkpoints_is_one_line(settings, process):
    folder = Path(settings.checkpoint_folder) / "checkpoint-00000001"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(CheckpointError, match="move the folder away to begin anew"):
        process.initialise(settings)


def test_a_damaged_newest_checkpoint_is_passed_over_and_said(settings, process):
    process.initialise(settings)
    for number in (1, 2):
        process.step(LESSON)
        path = Path(process.save(SaveRequest(b"%d" % number, round=number)).path)
    with (path / "weights.safetensors").open("r+b") as file:
        file.truncate(1000)
    ready = process.initialise(settings)
    assert (ready.policy_version, ready.node_state) == (1, b"1")
    assert any("checkpoint-00000002 is damaged" in note for note in ready.notes)


def test_checkpoints_of_another_model_are_refused_even_with_the_same_shapes(settings, process, tmp_path):
    process.initialise(settings)
    process.save(SaveRequest(b"", round=1))
    other = tmp_path / "other"
    shutil.copytree(TINY, other)
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[-2] ^= 1
    (other / "model.safetensors").write_bytes(weights)
    changed = msgspec.structs.replace(settings, model_path=str(other))
    with pytest.raises(CheckpointError, match="another model"):
        process.initialise(changed)


def test_wrong_settings_are_one_line_errors(settings, process, tmp_path):
    with pytest.raises(ConfigError, match="cuda:63"):
        process.initialise(msgspec.structs.replace(settings, device="cuda:63"))
    with pytest.raises(TrainingError, match="no safetensors weights"):
        process.initialise(msgspec.structs.replace(settings, model_path=str(tmp_path)))
    with pytest.raises(TrainingError, match="not been initialised"):
        process.step(LESSON)


def test_a_publication_that_fails_is_told_and_made_good_by_the_next_step(
    settings, process, tmp_path, monkeypatch
):
    ready = process.initialise(
        msgspec.structs.replace(settings, channel="file", channel_folder=str(tmp_path / "weights"))
    )
    assert ready.channel_reason == "weights.channel is file"
    with attach(ready.handle) as reader:

        def full(descriptor, data, offset):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as disk:
            disk.setattr(os, "pwrite", full)
            reply = process.step(LESSON)
        assert reply.metrics.updates
        assert (reply.policy_version, reader.read()[0]) == (0, 0)
        assert "policy version 1 is not published" in reply.problem
        assert "No space left" in reply.problem
        reply = process.step(NO_LESSON)
        assert (reply.policy_version, reader.read()[0], reply.problem) == (1, 1, "")
    process.close()
    assert list((tmp_path / "weights").iterdir()) == []


def test_weights_are_published_in_the_number_format_computed_in(settings, process):
    ready = process.initialise(msgspec.structs.replace(settings, dtype="bfloat16"))
    assert ready.dtype == "bfloat16"
    with WeightReader.attach(ready.handle) as reader:
        before = reader.read()[1]
        assert {tensor.dtype for tensor in before.values()} == {torch.bfloat16}
        assert process.step(LESSON).metrics.updates == 4
        assert reader.latest_version() == 1


def test_adapters_are_published_merged_and_resumed(settings, process):
    start = load_file(TINY / "model.safetensors")
    options = TrainingOptions(lora_rank=4, learning_rate=0.01, warmup_steps=0, gradient_checkpointing=True)
    lora = msgspec.structs.replace(settings, options=options)
    ready = process.initialise(lora)
    assert ready.parameters < 0.1 * sum(tensor.numel() for tensor in start.values())
    with WeightReader.attach(ready.handle) as reader:
        _, before = reader.read()
        assert before.keys() == start.keys()
        assert all(torch.equal(before[name], start[name].float()) for name in start)
        assert process.step(LESSON).policy_version == 1
        _, after = reader.read()
    changed = {name for name in start if not torch.equal(after[name], before[name])}
    assert "model.layers.0.self_attn.q_proj.weight" in changed
    assert "model.embed_tokens.weight" not in changed
    process.save(SaveRequest(b"", round=1))
    with WeightReader.attach(process.initialise(lora).handle) as reader:
        version, resumed = reader.read()
    assert version == 1
    assert all(torch.equal(resumed[name], after[name]) for name in after)
    # The same folder with all weights trained is another training.
    with pytest.raises(CheckpointError, match="cannot be resumed"):
        process.initialise(settings)


def test_an_eight_bit_optimizer_is_resumed_and_not_mistaken_for_another(settings, process):
    eight = msgspec.structs.replace(settings, options=TrainingOptions(optimizer="adamw_8bit"))
    process.initialise(eight)
    process.step(LESSON)
    process.save(SaveRequest(b"", round=1))
    expected = process.step(LESSON).metrics
    assert process.initialise(eight).steps == 1
    again = process.step(LESSON).metrics
    assert (again.loss, again.grad_norm) == (expected.loss, expected.grad_norm)
    with pytest.raises(CheckpointError, match=r"training\.optimizer"):
        process.initialise(settings)
