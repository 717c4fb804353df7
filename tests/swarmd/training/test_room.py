import json
import subprocess
import sys

import pytest
import torch

from swarmd.models.placement import FEWEST_TOKENS_AT_ONCE
from swarmd.training.room import Room, is_out_of_memory

# A trainer on a model of a few million numbers, in a process that may take less memory than one large
# slice needs; at the end the cap is lifted.
SHORT_OF_MEMORY = """
import json, resource, sys
from pathlib import Path
import psutil, torch
import swarmd.models
from transformers import Qwen2Config, Qwen2ForCausalLM
from swarmd.models.tokenization import load_tokenizer
from swarmd.training import room
from swarmd.training.messages import TrainingOptions
from swarmd.training.policy import Policy
from swarmd.training.trainer import Trainer
from swarmd.types import Completion, FinishReason, Prompt, RolloutGroup, TaskReference

torch.set_num_threads(1)
room._FIRST_PATIENCE_STEPS = 3
tokenizer = load_tokenizer(Path(swarmd.models.__file__).parent / "tiny")
torch.manual_seed(0)
model = Qwen2ForCausalLM(Qwen2Config(
    vocab_size=len(tokenizer), hidden_size=64, intermediate_size=8192, num_hidden_layers=1,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512))

def groups(many, words):
    return [
        RolloutGroup(
            group_id=str(n), author="a", is_local=True, task=TaskReference("d", "c", 1, n),
            prompt=Prompt("plain", "<question>Calculate 3 + 4.<answer>"),
            completions_G=tuple(Completion(f"{m} " * words, FinishReason.STOP) for m in range(8)),
            rewards_G=(1.0,) * 4 + (0.0,) * 4, policy_version=0,
            created_at=0.0, received_at=0.0, size_bytes=1)
        for n in range(many)
    ]

trainer = Trainer(Policy(model, 1.0), tokenizer, TrainingOptions(tokens_at_once=4096, importance="none"),
                  max_new_tokens=300, seed=0)
small, large = groups(1, 2), groups(4, 120)
trainer.step(small)  # The optimizer's own memory is taken here.
room_bytes = 250_000_000
resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + room_bytes, -1))
short = trainer.step(large)
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
seen = [trainer.step(small).tokens_at_once for _ in range(3 * 4 + 1)]
again = trainer.step(large)
print(json.dumps(
    [short.updates, short.tokens_at_once, short.loss, seen, again.updates, again.tokens_at_once]))
"""


def test_a_trainer_that_is_refused_memory_learns_in_smaller_slices_and_grows_back():
    done = subprocess.run(
        [sys.executable, "-c", SHORT_OF_MEMORY], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    updates, tokens, loss, after, updates_again, tokens_again = json.loads(done.stdout.splitlines()[-1])
    assert updates == 1
    assert FEWEST_TOKENS_AT_ONCE <= tokens < 4096
    assert loss is not None
    assert after[0] == tokens
    assert after[-1] == 4096
    assert (updates_again, tokens_again) == (1, 4096)


def test_room_is_halved_down_to_the_fewest_tokens_and_no_further():
    room = Room(600)
    assert [room.halve(), room.tokens] == [True, 300]
    assert [room.halve(), room.tokens] == [True, FEWEST_TOKENS_AT_ONCE]
    assert [room.halve(), room.tokens] == [False, FEWEST_TOKENS_AT_ONCE]


def steps_until_doubled(room: Room) -> int:
    before = room.tokens
    for step in range(1, 5000):
        room.note_step()
        if room.tokens > before:
            return step
    return 0


def test_room_that_was_doubled_too_early_is_doubled_later_the_next_time():
    room = Room(1024)
    room.halve()
    waits = []
    for _ in range(7):
        waits.append(steps_until_doubled(room))
        room.halve()
    assert waits == [32, 64, 128, 256, 512, 1024, 1024]


def test_room_never_exceeds_what_was_asked_for():
    room = Room(1000)
    room.halve()
    room.halve()
    assert [steps_until_doubled(room), room.tokens] == [32, 512]
    assert [steps_until_doubled(room), room.tokens] == [32, 1000]
    assert steps_until_doubled(room) == 0


@pytest.mark.parametrize(
    ("error", "is_so"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (MemoryError(), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ..."), True),
        (RuntimeError("shapes do not match"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_only_refused_memory_counts(error, is_so):
    assert is_out_of_memory(error) == is_so
