import json
import os
import resource
import signal
import subprocess
import sys
import time

import msgspec
import pytest
import torch

from swarmd.errors import CheckpointError
from swarmd.training.checkpoint import Checkpoint, CheckpointCounters, CheckpointStore
from swarmd.training.messages import TrainingOptions
from swarmd.training.trainer import Trainer, TrainerState

MODEL = "ab" * 32


def checkpoint(number, *, digest=MODEL, size=100, eval_reward=None):
    return Checkpoint(
        weights={"layer.weight": torch.full((size, 4), float(number)), "empty": torch.zeros(0)},
        optimizer={
            "exp_avg/layer.weight": torch.full((size, 4), number / 3),
            "step/layer.weight": torch.tensor(1.0),
        },
        counters=CheckpointCounters(
            digest,
            round=number,
            policy_version=number + 1,
            steps=2,
            skipped_updates=3,
            eval_reward=eval_reward,
        ),
        node_state=f"node {number}".encode(),
    )


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def assert_loads(store, number):
    loaded, path, notes = store.load_newest(MODEL)
    assert loaded.counters == checkpoint(number).counters
    assert loaded.node_state == checkpoint(number).node_state
    for mine, saved in (
        (loaded.weights, checkpoint(number).weights),
        (loaded.optimizer, checkpoint(number).optimizer),
    ):
        assert mine.keys() == saved.keys()
        assert all(torch.equal(mine[name], saved[name]) for name in saved)
    return path, notes


def test_a_checkpoint_comes_back_as_it_was_saved(tmp_path):
    saved = CheckpointStore(tmp_path / "deep" / "folder", keep=2).save(checkpoint(7))
    path, notes = assert_loads(CheckpointStore(tmp_path / "deep" / "folder", keep=2), 7)
    assert (path, notes) == (saved.path, ())
    assert (
        saved.bytes
        == sum(file.stat().st_size for file in path.iterdir()) - (path / "manifest.json").stat().st_size
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_never_displace_good_ones(tmp_path, value):
    store = CheckpointStore(tmp_path, keep=1)
    store.save(checkpoint(1))
    broken = checkpoint(2)
    broken.weights["layer.weight"][50, 2] = value
    with pytest.raises(CheckpointError, match=r"not finite.*layer.weight.*the older ones are kept"):
        store.save(broken)
    assert_loads(CheckpointStore(tmp_path, keep=1), 1)
    assert len(names(tmp_path)) == 1


def test_no_checkpoint_is_a_fresh_start(tmp_path):
    assert CheckpointStore(tmp_path, keep=2).load_newest(MODEL) is None


def test_the_newest_of_those_kept_is_loaded_and_older_ones_are_removed(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    for number in range(1, 6):
        store.save(checkpoint(number))
    assert names(tmp_path) == ["checkpoint-00000004", "checkpoint-00000005"]
    assert_loads(store, 5)


@pytest.mark.parametrize(
    "file",
    ["weights.safetensors", "optimizer.safetensors", "counters.json", "node_state.bin", "manifest.json"],
)
@pytest.mark.parametrize("fault", ["flipped", "cut", "empty", "missing"])
def test_a_damaged_checkpoint_is_passed_over_with_a_note(tmp_path, file, fault):
    store = CheckpointStore(tmp_path, keep=3)
    store.save(checkpoint(1))
    victim = store.save(checkpoint(2)).path / file
    match fault:
        case "flipped":
            damage(victim)
        case "cut":
            victim.write_bytes(victim.read_bytes()[:-3])
        case "empty":
            victim.write_bytes(b"")
        case "missing":
            victim.unlink()
    path, notes = assert_loads(CheckpointStore(tmp_path, keep=3), 1)
    assert path.name == "checkpoint-00000001"
    assert len(notes) == 1
    assert "checkpoint-00000002 is damaged" in notes[0]
    assert (tmp_path / "checkpoint-00000002").exists()


def test_a_damaged_checkpoint_does_not_push_the_last_good_one_out(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    for number in (1, 2, 3):
        store.save(checkpoint(number))
    damage(tmp_path / "checkpoint-00000003" / "weights.safetensors")
    store = CheckpointStore(tmp_path, keep=2)
    assert_loads(store, 2)
    store.save(checkpoint(4))
    assert "checkpoint-00000002" in names(tmp_path)
    store.save(checkpoint(5))
    assert names(tmp_path) == ["checkpoint-00000004", "checkpoint-00000005"]


def test_when_all_are_damaged_one_line_says_so_and_nothing_is_touched(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    for number in (1, 2):
        damage(store.save(checkpoint(number)).path / "weights.safetensors")
    with pytest.raises(CheckpointError, match="move the folder away to begin anew") as caught:
        CheckpointStore(tmp_path, keep=2).load_newest(MODEL)
    assert "\n" not in str(caught.value)
    assert names(tmp_path) == ["checkpoint-00000001", "checkpoint-00000002"]


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    store.save(checkpoint(1, digest="cd" * 32))
    with pytest.raises(CheckpointError, match="another model"):
        store.load_newest(MODEL)


def test_a_checkpoint_of_a_newer_swarmd_is_refused_and_stays(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    store.save(checkpoint(1))
    manifest = store.save(checkpoint(2)).path / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 2}))
    with pytest.raises(CheckpointError, match="format 2 of a newer swarmd"):
        store.load_newest(MODEL)
    assert names(tmp_path) == ["checkpoint-00000001", "checkpoint-00000002"]


def test_the_best_by_held_out_reward_is_kept_beside_the_newest(tmp_path):
    store = CheckpointStore(tmp_path, keep=1)
    for number, reward in enumerate([None, 0.4, 0.6, 0.6, 0.5, None, 0.2], start=1):
        store.save(checkpoint(number, eval_reward=reward))
    assert names(tmp_path) == ["checkpoint-00000004", "checkpoint-00000007"]
    store.save(checkpoint(8, eval_reward=0.7))
    assert names(tmp_path) == ["checkpoint-00000008"]


def test_a_damaged_best_is_nobodys_best(tmp_path):
    store = CheckpointStore(tmp_path, keep=1)
    best = store.save(checkpoint(1, eval_reward=0.9)).path
    store.save(checkpoint(2, eval_reward=0.1))
    (best / "counters.json").write_bytes(b"{")
    store.save(checkpoint(3, eval_reward=0.3))
    assert names(tmp_path) == ["checkpoint-00000003"]


def test_counters_from_before_evaluations_were_noted_are_read(tmp_path):
    old = json.loads(msgspec.json.encode(checkpoint(5).counters))
    del old["eval_reward"]
    assert msgspec.json.decode(json.dumps(old), type=CheckpointCounters) == checkpoint(5).counters


def test_a_full_disk_fails_the_save_and_loses_no_older_checkpoint(tmp_path):
    store = CheckpointStore(tmp_path, keep=1)
    store.save(checkpoint(1))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The kernel refuses to let a file grow, in the middle of the weights, as a full disk does.
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(CheckpointError, match="the older ones are kept"):
            store.save(checkpoint(2, size=100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert names(tmp_path) == ["checkpoint-00000001"]
    assert_loads(store, 1)
    store.save(checkpoint(3))
    assert_loads(store, 3)


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot use the checkpoint folder"):
        CheckpointStore(tmp_path / "file" / "checkpoints", keep=2)


def test_what_an_interrupted_save_left_is_removed_and_other_files_are_not(tmp_path):
    (tmp_path / ".partial-123-4").mkdir()
    (tmp_path / ".partial-123-4" / "weights.safetensors").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    CheckpointStore(tmp_path, keep=2)
    assert names(tmp_path) == ["notes.txt"]


SAVE_FOR_EVER = """
import sys, torch
from pathlib import Path
from swarmd.training.checkpoint import Checkpoint, CheckpointCounters, CheckpointStore
store = CheckpointStore(Path(sys.argv[1]), keep=2)
for number in range(1, 10**9):
    value = {"weight": torch.full((300_000,), float(number))}
    store.save(Checkpoint(value, value, CheckpointCounters("m", number, number, 0, 0), str(number).encode()))
    print(number, flush=True)
"""


def test_a_process_killed_while_saving_leaves_a_whole_checkpoint(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", SAVE_FOR_EVER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    for _ in range(3):
        last_said = int(process.stdout.readline())
    # Killed in the middle of the next save, as soon as its folder appears.
    deadline = time.monotonic() + 20
    while not list(tmp_path.glob(".partial-*")) and time.monotonic() < deadline:
        pass
    os.kill(process.pid, signal.SIGKILL)
    last_said = max([last_said, *(int(line) for line in process.stdout.read().split())])
    process.wait()
    process.stdout.close()
    loaded, _, notes = CheckpointStore(tmp_path, keep=2).load_newest("m")
    number = loaded.counters.round
    assert number >= last_said
    assert notes == ()
    assert torch.equal(loaded.weights["weight"], torch.full((300_000,), float(number)))
    assert loaded.node_state == str(number).encode()


def test_a_trainer_resumed_from_disk_goes_on_bit_for_bit(tmp_path, make_policy, make_group, tokenizer):
    options = TrainingOptions(inner_epochs=2, minibatches=2, warmup_steps=6)
    batch = [
        make_group({"8": 1, "12": 0}, make_policy(seed=1)),
        make_group({"8": 1, "9": 0}),
        make_group({"1": 1, "2": 0}),
    ]
    trainer = Trainer(make_policy(), tokenizer, options, max_new_tokens=16, seed=3)
    trainer.step(batch)
    state = trainer.state()
    counters = CheckpointCounters(MODEL, 1, state.policy_version, state.steps, state.skipped_updates)
    store = CheckpointStore(tmp_path, keep=2)
    store.save(Checkpoint(state.weights, state.optimizer, counters, b"position 17"))
    expected = [trainer.step(batch) for _ in range(3)]

    loaded, _, _ = store.load_newest(MODEL)
    resumed = Trainer(make_policy(seed=8), tokenizer, options, max_new_tokens=16, seed=0)
    counters = loaded.counters
    resumed.restore(
        TrainerState(
            dict(loaded.weights),
            dict(loaded.optimizer),
            counters.policy_version,
            counters.steps,
            counters.skipped_updates,
        )
    )
    actual = [resumed.step(batch) for _ in range(3)]
    assert [(m.loss, m.grad_norm, m.learning_rate) for m in actual] == [
        (m.loss, m.grad_norm, m.learning_rate) for m in expected
    ]
    for name, parameter in trainer.policy.parameters.items():
        assert torch.equal(parameter, resumed.policy.parameters[name]), name
    assert resumed.policy_version == trainer.policy_version == 4
    assert loaded.node_state == b"position 17"
