"""What every kind of weight channel promises. `cuda_ipc` runs with a stand-in for the GPU's own calls."""

import random
import threading
import time
from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from channel_kind import Kind, kill
from hammer import tensors_of

from swarmd.errors import WeightChannelError
from swarmd.types import WeightHandle
from swarmd.weights import channel, cuda_ipc, ends, file, shared_memory
from swarmd.weights.channel_file import ChannelFile
from swarmd.weights.ends import ChannelWriter
from swarmd.weights.host import HostWriter
from swarmd.weights.segment import Segment

KILLS = 6


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
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


def change(tensors: dict[str, torch.Tensor]) -> None:
    for tensor in {id(tensor): tensor for tensor in tensors.values()}.values():
        tensor.copy_(~tensor if tensor.dtype == torch.bool else tensor + 1)


def assert_equal(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert sorted(got) == sorted(expected)
    for key, tensor in expected.items():
        assert got[key].dtype == tensor.dtype
        assert got[key].shape == tensor.shape
        assert torch.equal(got[key], tensor), key


def test_reader_gets_each_version_exactly(kind: Kind, tensors: dict[str, torch.Tensor]) -> None:
    with kind.write(tensors) as writer, kind.read() as reader:
        assert reader.latest_version() is None
        with pytest.raises(WeightChannelError, match="no weights have been published"):
            reader.read()
        for version in (0, 1, 2, 7):
            change(tensors)
            writer.publish(version, tensors)
            assert reader.latest_version() == version
            got_version, got = reader.read()
            assert got_version == version
            assert reader.last_read == reader.latest()
            assert_equal(got, tensors)


def test_equal_publications_have_the_same_content_and_others_do_not(kind: Kind) -> None:
    one, other = {"w": torch.ones(1001)}, {"w": torch.zeros(1001)}
    with kind.write(one) as writer, kind.read() as reader:
        seen = []
        for tensors in (one, other, one):
            writer.publish(4, tensors)
            seen.append(reader.latest())
    assert seen[0] == seen[2] != seen[1]


def test_what_was_read_does_not_change_with_the_next_versions(
    kind: Kind, tensors: dict[str, torch.Tensor]
) -> None:
    with kind.write(tensors) as writer, kind.read() as reader:
        writer.publish(1, tensors)
        _, got = reader.read()
        expected = {key: tensor.clone() for key, tensor in tensors.items()}
        for version in (2, 3):
            change(tensors)
            writer.publish(version, tensors)
        assert_equal(got, expected)


@pytest.mark.parametrize("kind", [shared_memory.KIND, file.KIND], indirect=True)
def test_memory_of_a_version_that_nobody_holds_any_more_is_used_again(kind: Kind) -> None:
    tensors = {"a": torch.ones(1000), "b": torch.ones(1000)}
    with kind.write(tensors) as writer, kind.read() as reader:
        writer.publish(1, tensors)
        _, got = reader.read()
        place, held = got["a"].data_ptr(), got["b"][3:5]
        del got
        _, other = reader.read()
        assert other["a"].data_ptr() != place
        place = other["a"].data_ptr()
        del other
        assert reader.read()[1]["a"].data_ptr() == place
        assert held.tolist() == [1.0, 1.0]


def test_tied_tensors_come_back_as_one_and_others_do_not(
    kind: Kind, tensors: dict[str, torch.Tensor]
) -> None:
    tensors["twin"] = tensors["embed"].clone()
    with kind.write(tensors) as writer, kind.read() as reader:
        writer.publish(1, tensors)
        _, got = reader.read()
        assert got["head"].data_ptr() == got["embed"].data_ptr()
        assert got["twin"].data_ptr() != got["embed"].data_ptr()


def test_strided_and_trained_tensors_can_be_published(kind: Kind) -> None:
    tensors = {"t": torch.randn(6, 4).t(), "p": torch.nn.Parameter(torch.randn(3))}
    with kind.write(tensors) as writer, kind.read() as reader:
        writer.publish(1, tensors)
        _, got = reader.read()
        assert torch.equal(got["t"], tensors["t"])
        assert torch.equal(got["p"], tensors["p"].detach())


def test_refused_publication_leaves_the_last_version_readable(
    kind: Kind, tensors: dict[str, torch.Tensor]
) -> None:
    with kind.write(tensors) as writer, kind.read() as reader:
        writer.publish(1, tensors)
        with pytest.raises(WeightChannelError):
            writer.publish(2, {"embed": torch.zeros(1)})
        assert reader.read()[0] == 1


def test_copy_that_fails_in_the_middle_is_never_read_and_does_not_stop_the_next(
    kind: Kind, tensors: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    with kind.write(tensors) as writer, kind.read() as reader:
        writer.publish(1, tensors)
        expected = {key: tensor.clone() for key, tensor in tensors.items()}
        change(tensors)

        def fill_and_fail(slot: int, tensors: dict[str, torch.Tensor]) -> int:
            fill(slot, {name: torch.zeros_like(tensor) for name, tensor in tensors.items()})
            raise WeightChannelError("no more")

        for _ in range(2):
            fill = writer._fill
            monkeypatch.setattr(writer, "_fill", fill_and_fail)
            with pytest.raises(WeightChannelError, match="no more"):
                writer.publish(2, tensors)
            monkeypatch.undo()
            assert reader.latest_version() == 1
            assert_equal(reader.read()[1], expected)
        for version in (2, 3):
            writer.publish(version, tensors)
            got_version, got = reader.read()
            assert got_version == version
            assert_equal(got, tensors)


def spoil(writer: ChannelWriter) -> None:
    """Change a byte of the current version, as no writer does."""
    current = writer._header.current()
    assert current is not None
    if isinstance(writer, HostWriter):
        writer._medium.write(writer._slot_offsets[current[0]] + 17, np.array([7], dtype=np.uint8))
    else:
        writer._slots[current[0]][17] = 7


def assert_whole(version: int, tensors: dict[str, torch.Tensor]) -> None:
    expected = tensors_of(version)
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, expected[name]), (version, name)


def test_reader_never_sees_half_an_update_from_a_writer_that_never_pauses(kind: Kind) -> None:
    kind.other_process("write")
    with kind.read() as reader:
        versions: list[int] = []
        while len(set(versions)) < 30:
            version, tensors = reader.read()
            assert_whole(version, tensors)
            taken = Taken()
            versions += [version, reader.lend(taken)]
            assert_whole(versions[-1], taken.tensors)
        assert versions == sorted(versions)


class Taken:
    """What a model that copies does when weights are lent to it; something may come in between."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.times = 0
        self.tensors: dict[str, torch.Tensor] = {}
        self.is_torn = False
        self._meanwhile = meanwhile

    def __call__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.times += 1
        before = {name: tensor.clone() for name, tensor in tensors.items()}
        if self.times == 1:
            self._meanwhile()
        self.tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        self.is_torn = any(not torch.equal(self.tensors[name], before[name]) for name in before)


def test_lent_weights_are_the_newest_ones(kind: Kind, tensors: dict[str, torch.Tensor]) -> None:
    taken = Taken()
    with kind.write(tensors) as writer, kind.read() as reader:
        with pytest.raises(WeightChannelError, match="no weights have been published"):
            reader.lend(taken)
        for version in (1, 2, 5):
            change(tensors)
            writer.publish(version, tensors)
            assert reader.lend(taken) == version
            assert reader.last_read == reader.latest()
            assert_equal(taken.tensors, tensors)
    assert taken.times == 3


def test_half_an_update_that_was_lent_is_followed_by_a_whole_one(kind: Kind) -> None:
    with kind.write(tensors_of(1)) as writer, kind.read() as reader:

        def overtake() -> None:
            for version in (2, 3):
                writer.publish(version, tensors_of(version))

        writer.publish(1, tensors_of(1))
        taken = Taken(overtake)
        version = reader.lend(taken)
        assert_whole(version, taken.tensors)
        assert not taken.is_torn
        # Only shared memory is lent as it lies there; from the others comes a copy.
        assert (version, taken.times) == ((3, 2) if kind.name == shared_memory.KIND else (1, 1))
        assert reader.last_read is not None
        assert reader.last_read.version == version


def test_next_version_alone_does_not_touch_what_is_lent(kind: Kind) -> None:
    with kind.write(tensors_of(1)) as writer, kind.read() as reader:
        writer.publish(1, tensors_of(1))
        taken = Taken(lambda: writer.publish(2, tensors_of(2)))
        assert reader.lend(taken) == 1
        assert taken.times == 1
        assert_whole(1, taken.tensors)


@pytest.mark.parametrize("kind", [shared_memory.KIND], indirect=True)
def test_half_an_update_that_cannot_be_followed_by_a_whole_one_is_an_error_of_its_own(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends, "_READ_DEADLINE_SECONDS", 0.1)
    with kind.write(tensors_of(1)) as writer, kind.read() as reader:

        def overtake_and_spoil() -> None:
            for version in (2, 3):
                writer.publish(version, tensors_of(version))
            spoil(writer)

        writer.publish(1, tensors_of(1))
        with pytest.raises(RuntimeError, match=r"half an update was taken.*checksum"):
            reader.lend(Taken(overtake_and_spoil))


def test_refusal_of_what_is_lent_is_told_unless_it_was_overtaken(kind: Kind) -> None:
    with kind.write(tensors_of(1)) as writer, kind.read() as reader:
        writer.publish(1, tensors_of(1))
        seen: list[float] = []

        def refuse(tensors: Mapping[str, torch.Tensor]) -> None:
            seen.append(float(tensors["t0"][0]))
            raise WeightChannelError("of another model")

        with pytest.raises(WeightChannelError, match="of another model"):
            reader.lend(refuse)
        assert seen == [1.0]

        def refuse_what_is_torn(tensors: Mapping[str, torch.Tensor]) -> None:
            taken(tensors)
            if taken.is_torn:
                raise WeightChannelError("of another model")

        taken = Taken(lambda: [writer.publish(version, tensors_of(version)) for version in (2, 3)] and None)
        version = reader.lend(refuse_what_is_torn)
        assert_whole(version, taken.tensors)


def test_several_readers_at_once_never_see_half_an_update(kind: Kind) -> None:
    faults: list[BaseException] = []
    done = threading.Event()

    def read_until_done() -> None:
        try:
            with kind.read() as reader:
                while not done.is_set():
                    assert_whole(*reader.read())
        except (AssertionError, WeightChannelError) as error:
            faults.append(error)

    with kind.write(tensors_of(0)) as writer:
        writer.publish(0, tensors_of(0))
        readers = [threading.Thread(target=read_until_done) for _ in range(3)]
        for thread in readers:
            thread.start()
        for version in range(1, 60):
            writer.publish(version, tensors_of(version))
        done.set()
        for thread in readers:
            thread.join()
    assert faults == []


def test_writers_killed_at_random_moments_leave_the_version_before_in_service(kind: Kind) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    moments = random.Random(seed)
    reader = None
    for _ in range(KILLS):
        writer = kind.other_process("write")
        time.sleep(moments.uniform(0.0, 0.05))
        kill(writer)
        if kind.name == cuda_ipc.KIND:  # Its memory is gone with it.
            with pytest.raises(WeightChannelError, match="is gone"):
                kind.read()
            continue
        reader = reader or kind.read()
        version, tensors = reader.read()
        assert version >= 3
        assert_whole(version, tensors)
        # A generator that starts now finds the same.
        with kind.read() as fresh:
            assert fresh.read()[0] == version
    if reader is not None:
        reader.close()
    tensors = {"other": torch.ones(3)}
    with kind.write(tensors) as last, kind.read() as fresh:
        last.publish(1, tensors)
        assert_equal(fresh.read()[1], tensors)


def test_readers_killed_at_random_moments_harm_neither_writer_nor_other_readers(kind: Kind) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    moments = random.Random(seed)
    with kind.write(tensors_of(0)) as writer, kind.read() as other:
        writer.publish(0, tensors_of(0))
        version = 0
        for _ in range(KILLS):
            reader = kind.other_process("read")
            until = time.monotonic() + moments.uniform(0.0, 0.2)
            while time.monotonic() < until:
                version += 1
                writer.publish(version, tensors_of(version))
            kill(reader)  # It ends by itself when it reads half an update.
            assert_whole(*other.read())
        assert other.latest_version() == version


def test_changed_byte_in_the_current_slot_is_noticed(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "_READ_DEADLINE_SECONDS", 0.1)
    tensors = {"a": torch.ones(1000)}
    with kind.write(tensors) as writer:
        writer.publish(1, tensors)
        spoil(writer)
        taken = Taken()
        with kind.read() as reader:
            with pytest.raises(WeightChannelError, match="checksum"):
                reader.read()
            with pytest.raises(WeightChannelError, match="checksum"):
                reader.lend(taken)
        assert taken.times == 0


def test_reader_follows_a_restarted_trainer_once_that_has_published(kind: Kind) -> None:
    writer = kind.other_process("write")
    with kind.read() as reader:
        last, _ = reader.read()
        kill(writer)
        tensors = {"other": torch.ones(3)}
        with kind.write(tensors) as again:
            latest = reader.latest_version()
            assert latest is not None
            assert latest >= last
            again.publish(1, tensors)
            assert reader.latest_version() == 1
            version, got = reader.read()
            assert version == 1
            assert_equal(got, tensors)


def test_unknown_and_missing_channels_are_one_line(kind: Kind) -> None:
    with pytest.raises(WeightChannelError, match=r"no .* named"):
        kind.read()
    with pytest.raises(WeightChannelError, match="cannot read weights of kind 'pigeon'"):
        channel.attach(WeightHandle("pigeon", "x"))


@pytest.mark.parametrize(
    "start", [b"", b"someones own data", b"swarmdW2" + b"\xff" * 8, b"swarmdW2" + bytes(16)]
)
def test_foreign_bytes_are_refused_and_replaced(kind: Kind, start: bytes) -> None:
    medium = Segment if kind.name == shared_memory.KIND else ChannelFile
    foreign = medium.create(kind.handle.name, 8192)
    foreign.write(0, np.frombuffer(start, dtype=np.uint8))
    with pytest.raises(WeightChannelError):
        kind.read()
    with pytest.raises(WeightChannelError, match="in use"):
        kind.write({"a": torch.ones(3)})
    foreign._is_owner = False  # As its owner were killed.
    foreign.close()
    with kind.write({"a": torch.ones(3)}) as writer, kind.read() as reader:
        writer.publish(1, {"a": torch.ones(3)})
        assert reader.read()[0] == 1


def test_closing_the_writer_leaves_nothing(kind: Kind, tensors: dict[str, torch.Tensor]) -> None:
    writer = kind.write(tensors)
    writer.publish(1, tensors)
    writer.close()
    assert not Segment.remove(kind.segment)
    assert not list(kind.folder.glob(kind.name))


@pytest.mark.parametrize("kind", [shared_memory.KIND, file.KIND], indirect=True)
def test_restarted_trainer_takes_the_channel_over_with_its_last_version(kind: Kind) -> None:
    writer = kind.other_process("write")
    with kind.read() as reader:
        kill(writer)
        last, _ = reader.read()
        with kind.write(tensors_of(0)) as again, kind.read() as fresh:
            # No second room was taken, and a generator that starts before the first publication is served.
            assert reader._slots.medium.is_current
            assert fresh.read()[0] == last
            for version in (2, 3, 4):
                again.publish(version, tensors_of(version))
                assert_whole(*reader.read())
                assert reader.latest_version() == version
