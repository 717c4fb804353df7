import multiprocessing
import os
import signal
import subprocess
import sys
import uuid

import pytest

from swarmd.errors import WeightChannelError
from swarmd.weights.segment import Segment, channel_name, remove_leftovers

HOLD = """
import sys, time
from swarmd.weights.segment import Segment
segment = Segment.create(sys.argv[1], 4096)
segment.memory[:5] = b"hello"
print("ready", flush=True)
time.sleep(60)
"""

READ = """
import sys
from swarmd.weights.segment import Segment
segment = Segment.attach(sys.argv[1])
assert segment.memory[:5] == b"hello"
"""


@pytest.fixture
def name():
    name = f"swarmd-test-{uuid.uuid4().hex[:8]}"
    yield name
    Segment.remove(name)


def hold_in_another_process(name: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, name], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_reader_sees_what_the_owner_writes_and_cannot_write(name):
    owner = Segment.create(name, 8192)
    reader = Segment.attach(name)
    owner.memory[100:103] = b"abc"
    assert reader.memory[100:103] == b"abc"
    with pytest.raises(TypeError):
        reader.memory[0:1] = b"x"
    reader.close()
    owner.close()


def test_segment_is_gone_after_its_owner_closed_it_and_reader_keeps_its_view(name):
    owner = Segment.create(name, 4096)
    reader = Segment.attach(name)
    owner.memory[:1] = b"x"
    owner.close()
    owner.close()
    assert reader.memory[:1] == b"x"
    assert not reader.is_current
    with pytest.raises(WeightChannelError, match="no shared memory"):
        Segment.attach(name)
    reader.close()


def test_segment_survives_the_exit_of_a_reading_process(name):
    # Python's own shared memory fails here before 3.13: its resource tracker unlinks the segment.
    owner = Segment.create(name, 4096)
    owner.memory[:5] = b"hello"
    for _ in range(2):
        subprocess.run([sys.executable, "-c", READ, name], check=True)
    assert owner.is_current
    owner.close()


def test_segment_survives_the_kill_of_a_reading_process(name):
    owner = Segment.create(name, 4096)
    context = multiprocessing.get_context("spawn")
    attached = context.Event()
    process = context.Process(target=_attach_and_wait, args=(name, attached))
    process.start()
    assert attached.wait(60)
    process.kill()
    process.join()
    assert owner.is_current
    owner.close()


def _attach_and_wait(name, attached) -> None:
    segment = Segment.attach(name)
    attached.set()
    signal.pause()
    segment.close()


def test_leftover_of_a_killed_owner_is_replaced(name):
    process = hold_in_another_process(name)
    process.kill()
    process.wait()
    old = Segment.attach(name)
    assert old.memory[:5] == b"hello"
    owner = Segment.create(name, 8192)
    assert owner.memory[:5] == bytes(5)
    assert not old.is_current
    old.close()
    owner.close()


def test_segment_of_a_living_owner_is_not_taken(name):
    process = hold_in_another_process(name)
    try:
        with pytest.raises(WeightChannelError, match="in use"):
            Segment.create(name, 4096)
        with pytest.raises(WeightChannelError, match="in use"):
            Segment.remove(name)
        Segment.attach(name).close()
    finally:
        process.kill()
        process.wait()


def test_old_owner_does_not_remove_the_segment_of_a_new_one(name):
    old = Segment.create(name, 4096)
    os.unlink(f"/dev/shm/{name}")
    new = Segment.create(name, 4096)
    old.close()
    assert new.is_current
    new.close()


def test_too_little_shared_memory_is_one_line_that_says_how_much_is_needed(name):
    with pytest.raises(WeightChannelError, match=r"too small.*MB.*--shm-size") as caught:
        Segment.create(name, 1 << 50)
    assert "\n" not in str(caught.value)
    assert not Segment.remove(name)


@pytest.mark.parametrize("bad", ["", "a/b", "..", "a\0b"])
def test_name_that_is_a_path_is_refused(bad):
    with pytest.raises(WeightChannelError, match="not a name"):
        Segment.create(bad, 4096)


def test_removing_says_whether_there_was_one(name):
    process = hold_in_another_process(name)
    process.kill()
    process.wait()
    assert Segment.remove(name)
    assert not Segment.remove(name)


def test_only_what_dead_processes_left_is_removed():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    mine = channel_name()
    assert mine != channel_name()
    dead = [f"swarmd-{child.pid}", f"swarmd-{child.pid}-0123abcd"]
    kept = [mine, f"swarmd-notes-{uuid.uuid4().hex[:8]}", f"swarmd-{child.pid}-{uuid.uuid4().hex[:8]}-x"]
    # Of a node whose process ids are counted elsewhere, in a container that shares /dev/shm.
    owner = hold_in_another_process(f"swarmd-{child.pid}-cafe")
    for each in (*dead, *kept):
        with open(f"/dev/shm/{each}", "wb") as file:
            file.write(b"weights")
    try:
        assert remove_leftovers() >= 2
        assert not any(os.path.exists(f"/dev/shm/{each}") for each in dead)
        assert all(os.path.exists(f"/dev/shm/{each}") for each in kept)
        assert os.path.exists(f"/dev/shm/swarmd-{child.pid}-cafe")
    finally:
        owner.kill()
        owner.wait()
        for each in (*dead, *kept):
            Segment.discard(each)
    assert remove_leftovers() == 1
    assert not os.path.exists(f"/dev/shm/{mine}")
