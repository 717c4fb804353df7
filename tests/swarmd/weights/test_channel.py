import os
from pathlib import Path

import pytest
import torch
from stand_in_gpu import StandInGpu

from swarmd.errors import WeightChannelError
from swarmd.weights import channel
from swarmd.weights.channel_file import ChannelFile
from swarmd.weights.cuda_ipc import CudaIpcReader, CudaIpcWriter
from swarmd.weights.segment import Segment, channel_name

TENSORS = {"w": torch.ones(300_000)}  # 2.4 MB for two versions.


@pytest.fixture
def name():
    name = channel_name()
    yield name
    Segment.discard(name)


def no_room(monkeypatch: pytest.MonkeyPatch, medium: type) -> None:
    monkeypatch.setattr(medium, "_free_bytes", staticmethod(lambda name: 1_000_000))


def test_shared_memory_is_taken_where_it_has_room(tmp_path: Path, name: str) -> None:
    opened = channel.create("auto", name, tmp_path, TENSORS, same_gpu=False)
    assert (opened.writer.handle.kind, opened.problem) == ("shared_memory", "")
    assert opened.reason
    assert list(tmp_path.iterdir()) == []
    opened.writer.close()


def test_without_room_in_shared_memory_a_file_is_taken(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_room(monkeypatch, Segment)
    folder = tmp_path / "home" / "weights"
    opened = channel.create("auto", name, folder, TENSORS, same_gpu=False)
    assert opened.writer.handle.kind == "file"
    assert "need 2.4 MB, 1.0 MB are free" in opened.reason
    assert opened.reason in opened.problem
    assert str(folder) in opened.problem
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "file").stat().st_mode & 0o777 == 0o600
    # Reserved, not only promised.
    assert (folder / "file").stat().st_blocks * 512 >= 2_400_000
    opened.writer.close()
    no_room(monkeypatch, ChannelFile)
    with pytest.raises(WeightChannelError, match=r"no room .*free some space.*--shm-size"):
        channel.create("auto", name, folder, TENSORS, same_gpu=False)
    assert list(folder.iterdir()) == []


def test_a_missing_dev_shm_leads_to_a_file(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_folder(name: str, flags: int) -> int:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(Segment, "_open", staticmethod(no_folder))
    opened = channel.create("auto", name, tmp_path, TENSORS, same_gpu=False)
    assert opened.writer.handle.kind == "file"
    assert "No such file or directory" in opened.problem
    opened.writer.close()


def test_a_shared_gpu_is_taken_and_one_that_cannot_share_its_memory_is_passed_over(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This torch has no CUDA: sharing fails as it does where the driver cannot.
    opened = channel.create("auto", name, tmp_path, TENSORS, same_gpu=True)
    assert opened.writer.handle.kind == "shared_memory"
    assert "cannot share memory of cpu" in opened.problem
    opened.writer.close()
    monkeypatch.setattr(CudaIpcWriter, "gpu", StandInGpu(tmp_path))
    monkeypatch.setattr(CudaIpcReader, "gpu", StandInGpu(tmp_path))
    opened = channel.create("auto", name, tmp_path / "weights", TENSORS, same_gpu=True)
    assert (opened.writer.handle.kind, opened.problem) == ("cuda_ipc", "")
    opened.writer.publish(1, TENSORS)
    with pytest.raises(WeightChannelError, match="cannot read weights of kind 'shared_memory'"):
        CudaIpcReader.attach(opened.writer.handle.__class__("shared_memory", name))
    assert channel.attach(opened.writer.handle).read()[0] == 1
    opened.writer.close()


@pytest.mark.parametrize("kind", ["shared_memory", "file", "cuda_ipc"])
def test_the_kind_asked_for_is_taken_or_refused(
    tmp_path: Path, name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind != "cuda_ipc":
        opened = channel.create(kind, name, tmp_path, TENSORS, same_gpu=True)
        assert opened.writer.handle.kind == kind
        assert opened.reason == f"weights.channel is {kind}"
        opened.writer.close()
    no_room(monkeypatch, Segment)
    no_room(monkeypatch, ChannelFile)
    with pytest.raises(WeightChannelError, match=r"too small|no room|cannot share"):
        channel.create(kind, name, tmp_path, TENSORS, same_gpu=True)
    with pytest.raises(WeightChannelError, match="do not share a GPU"):
        channel.create("cuda_ipc", name, tmp_path, TENSORS, same_gpu=False)
    with pytest.raises(WeightChannelError, match="must be auto"):
        channel.create("pigeon", name, tmp_path, TENSORS, same_gpu=False)


def test_files_of_a_killed_run_that_went_another_way_are_removed(tmp_path: Path, name: str) -> None:
    # A counter that torch keeps in shared memory for a GPU's buffer, and the files.
    counter = Path(f"/dev/shm/swarmd-test-counter-{os.getpid()}")
    counter.write_bytes(b"1")
    gpu = StandInGpu(tmp_path)
    gpu.counter = f"/{counter.name}".encode()
    writer_type = type("Writer", (CudaIpcWriter,), {"gpu": gpu})
    for kind in ("cuda_ipc", "file"):
        left = (
            writer_type.create(str(tmp_path / kind), TENSORS)
            if kind == "cuda_ipc"
            else channel.create(kind, name, tmp_path, TENSORS, same_gpu=False).writer
        )
        left._medium._is_owner = False  # As its owner were killed.
        left._medium.close()
        assert (tmp_path / kind).exists()
        channel.create("shared_memory", name, tmp_path, TENSORS, same_gpu=False).writer.close()
        assert not (tmp_path / kind).exists()
    assert not counter.exists()


def test_a_disk_that_fails_is_an_error_and_the_version_before_is_served(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = channel.create("file", name, tmp_path, TENSORS, same_gpu=False)
    reader = channel.attach(opened.writer.handle)
    opened.writer.publish(1, TENSORS)

    def full(descriptor: int, data: bytes, offset: int) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", full)
        with pytest.raises(WeightChannelError, match="No space left on device"):
            opened.writer.publish(2, TENSORS)
    assert reader.read()[0] == 1
    opened.writer.publish(3, TENSORS)
    assert reader.read()[0] == 3
    os.truncate(tmp_path / "file", 10_000)
    with pytest.raises(WeightChannelError, match="torn"):
        reader.read()
    reader.close()
    opened.writer.close()
