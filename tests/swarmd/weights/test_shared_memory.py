import subprocess
import sys
import threading
import uuid

import pytest
import torch

from swarmd.errors import WeightChannelError
from swarmd.types import WeightHandle
from swarmd.weights import shared_memory
from swarmd.weights.segment import Segment, remove_segment
from swarmd.weights.shared_memory import KIND, WeightReader, WeightWriter

# Publishes versions for ever; in version v every number is v, so half an update is seen at once.
HAMMER = """
import sys, torch
from swarmd.weights.shared_memory import WeightWriter
torch.set_num_threads(1)
tensors = {f"t{i}": torch.zeros(50_000) for i in range(8)}
writer = WeightWriter.create(sys.argv[1], tensors)
version = 0
while True:
    version += 1
    for tensor in tensors.values():
        tensor.fill_(version)
    writer.publish(version, tensors)
    if version == 3:
        print("ready", flush=True)
"""


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def name():
    name = f"swarmd-test-{uuid.uuid4().hex[:8]}"
    yield name
    remove_segment(name)


@pytest.fixture
def tensors():
    torch.manual_seed(0)
    embedding = torch.randn(37, 5)
    return {
        "embed": embedding,
        "odd": torch.randn(7).bfloat16(),
        "half": torch.randn(3, 3).half(),
        "counts": torch.arange(5),
        "mask": torch.tensor([True, False, True]),
        "scalar": torch.tensor(1.5),
        "empty": torch.zeros(0, 4),
        "big": torch.randn(700, 1001),
        "head": embedding,
    }


def change(tensors):
    for tensor in {id(tensor): tensor for tensor in tensors.values()}.values():
        tensor.copy_(~tensor if tensor.dtype == torch.bool else tensor + 1)


def assert_equal(got, expected):
    assert sorted(got) == sorted(expected)
    for key, tensor in expected.items():
        assert got[key].dtype == tensor.dtype
        assert got[key].shape == tensor.shape
        assert torch.equal(got[key], tensor), key


def test_reader_gets_each_version_exactly(name, tensors):
    with WeightWriter.create(name, tensors) as writer, WeightReader.attach(writer.handle) as reader:
        for version in (0, 1, 2, 7):
            change(tensors)
            writer.publish(version, tensors)
            assert reader.latest_version() == version
            got_version, got = reader.read()
            assert got_version == version
            assert_equal(got, tensors)


def test_what_was_read_does_not_change_with_the_next_versions(name, tensors):
    with WeightWriter.create(name, tensors) as writer, WeightReader.attach(writer.handle) as reader:
        writer.publish(1, tensors)
        _, got = reader.read()
        expected = {key: tensor.clone() for key, tensor in tensors.items()}
        for version in (2, 3):
            change(tensors)
            writer.publish(version, tensors)
        assert_equal(got, expected)


def test_tied_tensors_come_back_as_one(name, tensors):
    with WeightWriter.create(name, tensors) as writer, WeightReader.attach(writer.handle) as reader:
        writer.publish(1, tensors)
        _, got = reader.read()
        assert got["head"].data_ptr() == got["embed"].data_ptr()


def test_strided_and_trained_tensors_can_be_published(name):
    tensors = {"t": torch.randn(6, 4).t(), "p": torch.nn.Parameter(torch.randn(3))}
    with WeightWriter.create(name, tensors) as writer, WeightReader.attach(writer.handle) as reader:
        writer.publish(1, tensors)
        _, got = reader.read()
        assert torch.equal(got["t"], tensors["t"])
        assert torch.equal(got["p"], tensors["p"].detach())


def test_nothing_can_be_read_before_the_first_version(name, tensors):
    with WeightWriter.create(name, tensors) as writer, WeightReader.attach(writer.handle) as reader:
        assert reader.latest_version() is None
        with pytest.raises(WeightChannelError, match="no weights have been published"):
            reader.read()


def test_refused_publication_leaves_the_last_version_readable(name, tensors):
    with WeightWriter.create(name, tensors) as writer, WeightReader.attach(writer.handle) as reader:
        writer.publish(1, tensors)
        with pytest.raises(WeightChannelError):
            writer.publish(2, {"embed": torch.zeros(1)})
        assert reader.read()[0] == 1


def test_copy_that_fails_in_the_middle_is_never_read_and_does_not_stop_the_next(name, tensors, monkeypatch):
    with WeightWriter.create(name, tensors) as writer, WeightReader.attach(writer.handle) as reader:
        writer.publish(1, tensors)
        expected = {key: tensor.clone() for key, tensor in tensors.items()}
        change(tensors)
        copy_in, calls = shared_memory._copy_in, []

        def fail_at_the_third(tensor, region):
            calls.append(tensor)
            if len(calls) == 3:
                raise MemoryError
            return copy_in(tensor, region)

        for _ in range(2):
            calls.clear()
            monkeypatch.setattr(shared_memory, "_copy_in", fail_at_the_third)
            with pytest.raises(MemoryError):
                writer.publish(2, tensors)
            monkeypatch.undo()
            assert_equal(reader.read()[1], expected)
        for version in (2, 3):
            writer.publish(version, tensors)
            got_version, got = reader.read()
            assert got_version == version
            assert_equal(got, tensors)


def start_hammer(name: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HAMMER, name], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def assert_whole(version, tensors):
    for tensor in tensors.values():
        assert tensor.min() == tensor.max() == version


def test_reader_never_sees_half_an_update_from_a_writer_that_never_pauses(name):
    process = start_hammer(name)
    try:
        with WeightReader.attach(WeightHandle(kind=KIND, name=name)) as reader:
            versions: list[int] = []
            while len(set(versions)) < 50:
                version, tensors = reader.read()
                assert_whole(version, tensors)
                versions.append(version)
            assert versions == sorted(versions)
    finally:
        process.kill()
        process.wait()


def test_several_readers_at_once_never_see_half_an_update(name):
    tensors = {f"t{i}": torch.zeros(20_000) for i in range(4)}
    faults: list[BaseException] = []
    done = threading.Event()

    def read_until_done() -> None:
        try:
            with WeightReader.attach(WeightHandle(kind=KIND, name=name)) as reader:
                while not done.is_set():
                    assert_whole(*reader.read())
        except (AssertionError, WeightChannelError) as error:
            faults.append(error)

    with WeightWriter.create(name, tensors) as writer:
        writer.publish(0, tensors)
        readers = [threading.Thread(target=read_until_done) for _ in range(3)]
        for thread in readers:
            thread.start()
        for version in range(1, 300):
            for tensor in tensors.values():
                tensor.fill_(version)
            writer.publish(version, tensors)
        done.set()
        for thread in readers:
            thread.join()
    assert faults == []


def test_writer_killed_at_any_moment_leaves_a_whole_version(name):
    for _ in range(3):
        process = start_hammer(name)
        process.kill()
        process.wait()
        with WeightReader.attach(WeightHandle(kind=KIND, name=name)) as reader:
            version, tensors = reader.read()
            assert version == reader.latest_version()
            assert version >= 3
            assert_whole(version, tensors)


def test_half_written_slot_of_a_killed_writer_is_not_read(name):
    tensors = {"a": torch.ones(1000), "b": torch.ones(1000)}
    writer = WeightWriter.create(name, tensors)
    writer.publish(1, tensors)
    # What a writer leaves that dies in the middle of its next version: an odd sequence, some data.
    writer._write_stamp(1 if writer._current == 1 else 0, shared_memory._Stamp(1, 2, 0))
    writer._words_of_slots[1][:10] = 7
    with WeightReader.attach(writer.handle) as reader:
        version, got = reader.read()
        assert version == 1
        assert_whole(1, got)
    writer.close()


def test_changed_byte_in_the_current_slot_is_noticed(name, monkeypatch):
    monkeypatch.setattr(shared_memory, "_READ_DEADLINE_SECONDS", 0.1)
    tensors = {"a": torch.ones(1000)}
    with WeightWriter.create(name, tensors) as writer:
        writer.publish(1, tensors)
        writer._words_of_slots[writer._current - 1][17] ^= 1
        with (
            WeightReader.attach(writer.handle) as reader,
            pytest.raises(WeightChannelError, match="checksum"),
        ):
            reader.read()


def test_reader_follows_a_restarted_trainer_once_that_has_published(name):
    process = start_hammer(name)
    reader = WeightReader.attach(WeightHandle(kind=KIND, name=name))
    process.kill()
    process.wait()
    last, _ = reader.read()
    tensors = {"other": torch.ones(3)}
    with WeightWriter.create(name, tensors) as writer:
        assert reader.latest_version() == last
        writer.publish(1, tensors)
        assert reader.latest_version() == 1
        version, got = reader.read()
        assert version == 1
        assert_equal(got, tensors)
    assert reader.read()[0] == 1
    reader.close()


def test_channel_of_another_kind_is_refused():
    with pytest.raises(WeightChannelError, match="cuda_ipc"):
        WeightReader.attach(WeightHandle(kind="cuda_ipc", name="x"))


@pytest.mark.parametrize("start", [b"", b"someones own data", b"swarmdW1" + bytes(16)])
def test_foreign_segment_is_refused(name, start):
    segment = Segment.create(name, 8192)
    segment.memory[: len(start)] = start
    with pytest.raises(WeightChannelError):
        WeightReader.attach(WeightHandle(kind=KIND, name=name))
    segment.close()


def test_closing_the_writer_removes_the_channel(name, tensors):
    writer = WeightWriter.create(name, tensors)
    writer.publish(1, tensors)
    writer.close()
    assert not remove_segment(name)
