import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.workers.framing import (
    HEADER,
    MAX_FRAME_BYTES,
    Beat,
    Call,
    FrameError,
    Progress,
    Refusal,
    Result,
    Stop,
    body_length,
    pack,
    unpack_to_daemon,
    unpack_to_worker,
)


@pytest.mark.parametrize("message", [Call(7, "sample", b"\x00\xff"), Stop()])
def test_messages_to_a_worker_survive_the_trip(message):
    frame = pack(message)
    assert body_length(frame[: HEADER.size]) == len(frame) - HEADER.size
    assert unpack_to_worker(frame[HEADER.size :]) == message


@pytest.mark.parametrize("message", [Result(1, b"x"), Refusal(1, "ConfigError", "no"), Progress("é"), Beat()])
def test_messages_to_the_daemon_survive_the_trip(message):
    assert unpack_to_daemon(pack(message)[HEADER.size :]) == message


def test_the_length_is_four_bytes_big_endian():
    assert pack(Stop())[:4] == len(msgspec.msgpack.encode(Stop())).to_bytes(4, "big")


def test_a_claimed_length_above_the_limit_is_refused():
    assert body_length(HEADER.pack(MAX_FRAME_BYTES)) == MAX_FRAME_BYTES
    with pytest.raises(FrameError, match="claims"):
        body_length(HEADER.pack(MAX_FRAME_BYTES + 1))


def test_a_message_of_the_wrong_direction_is_refused():
    with pytest.raises(FrameError):
        unpack_to_worker(pack(Beat())[HEADER.size :])
    with pytest.raises(FrameError):
        unpack_to_daemon(pack(Stop())[HEADER.size :])


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_frame_error(body):
    for unpack in (unpack_to_worker, unpack_to_daemon):
        try:
            unpack(body)
        except FrameError:
            continue
