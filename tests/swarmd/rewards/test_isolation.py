import os
import signal
import struct
import time

import pytest

from swarmd.rewards.isolation import MAX_RESULT_BYTES, Isolation
from swarmd.rewards.messages import ScoreReason
from swarmd.rewards.sandbox import Sandbox

# This process stays open: only the children's own limits apply here.
OPEN = Sandbox(("rlimits",), (), 8_000_000_000)


def isolation(timeout_seconds=5.0):
    return Isolation(OPEN, timeout_seconds, memory_bytes=100_000_000)


def _run(work, count=4, timeout_seconds=5.0):
    return isolation(timeout_seconds).run(count, work)


def test_results_come_back_in_order():
    assert _run(lambda i: b"%d" % i) == [b"0", b"1", b"2", b"3"]


def test_no_items_need_no_child():
    assert _run(lambda i: b"", count=0) == []


def test_large_results_pass_and_too_large_ones_are_invalid():
    sizes = [MAX_RESULT_BYTES, MAX_RESULT_BYTES + 1, 1]
    results = _run(lambda i: bytes(sizes[i]), count=3)
    assert results == [bytes(MAX_RESULT_BYTES), ScoreReason.INVALID, b"\0"]


def _raise(error):
    raise error


@pytest.mark.parametrize(
    ("poison", "reason"),
    [
        (lambda: _raise(RecursionError()), ScoreReason.INVALID),
        (lambda: _raise(SystemExit(0)), ScoreReason.INVALID),
        (lambda: _raise(KeyboardInterrupt()), ScoreReason.INVALID),
        (lambda: bytearray(20_000_000_000), ScoreReason.MEMORY),
        (lambda: os._exit(0), ScoreReason.CRASHED),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), ScoreReason.CRASHED),
        (lambda: os.close(3), ScoreReason.INVALID),
        (lambda: os.write(3, b"\xff" * 100), ScoreReason.CRASHED),
        (lambda: os.write(3, struct.pack(">IBI", 7, 0, 0)), ScoreReason.CRASHED),
    ],
)
def test_poison_costs_only_its_own_item(poison, reason):
    def work(i):
        if i == 1:
            poison()
            raise ValueError("reached only where the child survives its poison")
        return b"%d" % i

    results = _run(work)
    # A child without its pipe dies when it next writes; which item that is charged to does not matter.
    assert results[0] == b"0"
    assert isinstance(results[1], ScoreReason)
    assert results[1] in (reason, ScoreReason.CRASHED)
    assert results[2:] == [b"2", b"3"]


def test_item_that_hangs_is_killed_and_the_others_are_done():
    def work(i):
        while i == 0:
            time.sleep(0.01)
        return b"%d" % i

    assert _run(work, timeout_seconds=1.0) == [ScoreReason.TIMEOUT, b"1", b"2", b"3"]


def test_item_that_ignores_signals_and_burns_the_processor_is_killed_too():
    def work(i):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while i == 3:
            pass
        return b"%d" % i

    assert _run(work, timeout_seconds=1.0) == [b"0", b"1", b"2", ScoreReason.TIMEOUT]


def test_time_for_all_items_is_bounded():
    def work(i):
        time.sleep(60)
        return b""

    start = time.monotonic()
    assert set(_run(work, count=64, timeout_seconds=0.5)) == {ScoreReason.TIMEOUT}
    assert time.monotonic() - start < 10


def test_nothing_a_child_changes_outlives_it():
    changed = []

    def work(i):
        changed.append(i)
        return b"%d" % len(changed)

    assert _run(work) == [b"1", b"2", b"3", b"4"]
    assert _run(work) == [b"1", b"2", b"3", b"4"]
    assert changed == []


def test_child_holds_no_descriptor_of_its_parent():
    read_fd, write_fd = os.pipe()

    def work(i):
        try:
            os.write(write_fd, b"leak")
        except OSError:
            return b"refused"
        return b"written"

    assert _run(work, count=1) == [b"refused"]
    os.close(read_fd)
    os.close(write_fd)


def test_child_writes_to_nowhere(capfd):
    assert _run(lambda i: b"%d" % os.write(1, b"noise"), count=1) == [b"5"]
    assert capfd.readouterr().out == ""


def test_no_process_and_no_descriptor_is_left_behind():
    before = sorted(os.listdir("/proc/self/fd"))
    _run(lambda i: os._exit(1) if i % 2 else b"")
    assert sorted(os.listdir("/proc/self/fd")) == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
