import os
import signal
import struct
import time

import pytest

from swarmd.rewards.isolation import MAX_REQUESTS, Isolation
from swarmd.rewards.messages import ScoreReason
from swarmd.rewards.records import MAX_RESULT_BYTES
from swarmd.rewards.sandbox import Sandbox

# This process stays open: only the children's own limits apply here.
OPEN = Sandbox(("rlimits",), (), 8_000_000_000)


@pytest.fixture(params=["together", "alone"])
def run(request):
    """Runs `work(i)` for some items, in a child that serves other requests too or in children of its own."""
    isolations = []

    def run_items(work, count=4, timeout_seconds=5.0):
        isolation = make(work, timeout_seconds)
        isolations.append(isolation)
        return isolation.run(b"", count, alone=request.param == "alone")

    yield run_items
    for isolation in isolations:
        isolation.close()


def make(work, timeout_seconds=5.0):
    return Isolation(OPEN, lambda request: work, timeout_seconds, memory_bytes=100_000_000)


def test_results_come_back_in_order(run):
    assert run(lambda i: b"%d" % i) == [b"0", b"1", b"2", b"3"]


def test_no_items_need_no_child(run):
    assert run(lambda i: b"", count=0) == []


def test_large_results_pass_and_too_large_ones_are_invalid(run):
    sizes = [MAX_RESULT_BYTES, MAX_RESULT_BYTES + 1, 1]
    results = run(lambda i: bytes(sizes[i]), count=3)
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
def test_poison_costs_only_its_own_item(run, poison, reason):
    def work(i):
        if i == 1:
            poison()
            raise ValueError("reached only where the child survives its poison")
        return b"%d" % i

    results = run(work)
    # A child without its pipe dies when it next writes; which item that is charged to does not matter.
    assert results[0] == b"0"
    assert isinstance(results[1], ScoreReason)
    assert results[1] in (reason, ScoreReason.CRASHED)
    assert results[2:] == [b"2", b"3"]


def test_item_that_hangs_is_killed_and_the_others_are_done(run):
    def work(i):
        while i == 0:
            time.sleep(0.01)
        return b"%d" % i

    assert run(work, timeout_seconds=1.0) == [ScoreReason.TIMEOUT, b"1", b"2", b"3"]


def test_item_that_ignores_signals_and_burns_the_processor_is_killed_too(run):
    def work(i):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while i == 3:
            pass
        return b"%d" % i

    assert run(work, timeout_seconds=1.0) == [b"0", b"1", b"2", ScoreReason.TIMEOUT]


def test_time_for_all_items_is_bounded(run):
    def work(i):
        time.sleep(60)
        return b""

    start = time.monotonic()
    assert set(run(work, count=64, timeout_seconds=0.5)) == {ScoreReason.TIMEOUT}
    assert time.monotonic() - start < 10


def test_nothing_a_child_changes_reaches_the_parent(run):
    changed = []

    def work(i):
        changed.append(i)
        return b"%d" % len(changed)

    assert run(work) == [b"1", b"2", b"3", b"4"]
    assert changed == []


def test_requests_share_a_child_and_one_that_wants_to_be_alone_does_not():
    isolation = make(lambda i: b"%d" % os.getpid())
    [first], [second] = isolation.run(b"", 1), isolation.run(b"", 1)
    alone = {isolation.run(b"", 1, alone=True)[0] for _ in range(2)}
    isolation.close()
    assert first == second
    assert len({first, *alone}) == 3


def test_request_is_handed_to_the_child_whatever_its_size():
    isolation = Isolation(OPEN, lambda request: lambda i: b"%d" % len(request), 5.0, 100_000_000)
    sizes = (0, 1, 3_000_000, 7)
    assert [isolation.run(bytes(size), 1) for size in sizes] == [[b"%d" % size] for size in sizes]
    isolation.close()


@pytest.mark.parametrize(
    "poison",
    [
        lambda: os._exit(0),
        lambda: bytearray(20_000_000_000),
        lambda: time.sleep(60),
        lambda: os.write(3, struct.pack(">IBI", 1, 0, 1) + b"x"),
    ],
)
def test_child_that_something_went_wrong_with_serves_no_other_request(poison):
    def work(request):
        def item(i):
            if request == b"poison":
                poison()
            return b"%d" % os.getpid()

        return item

    isolation = Isolation(OPEN, work, 2.0, 100_000_000)
    before = isolation.run(b"", 1)
    isolation.run(b"poison", 1)
    after = isolation.run(b"", 1)
    isolation.close()
    assert before != after


def test_shared_child_is_replaced_after_many_requests_and_after_much_work():
    isolation = make(lambda i: b"%d" % os.getpid())
    pids = [isolation.run(b"", 1)[0] for _ in range(MAX_REQUESTS + 1)]
    isolation.close()
    assert len(set(pids[:-1])) == 1
    assert pids[-1] != pids[0]

    def work(i):
        time.sleep(0.3)
        return b"%d" % os.getpid()

    busy = make(work, timeout_seconds=2.0)
    pids = [busy.run(b"", 1)[0] for _ in range(9)]
    busy.close()
    assert len(set(pids)) > 1


def test_child_that_does_not_take_its_request_costs_time_and_nothing_else():
    isolation = make(lambda i: b"%d" % i, timeout_seconds=2.0)
    assert isolation.run(b"", 1) == [b"0"]
    os.kill(isolation._shared.pid, signal.SIGSTOP)
    assert isolation.run(bytes(1_000_000), 1) == [b"0"]
    isolation.close()


def test_child_holds_no_descriptor_of_its_parent(run):
    read_fd, write_fd = os.pipe()

    def work(i):
        try:
            os.write(write_fd, b"leak")
        except OSError:
            return b"refused"
        return b"written"

    assert run(work, count=1) == [b"refused"]
    os.close(read_fd)
    os.close(write_fd)


def test_child_writes_to_nowhere(run, capfd):
    assert run(lambda i: b"%d" % os.write(1, b"noise"), count=1) == [b"5"]
    assert capfd.readouterr().out == ""


def test_no_process_and_no_descriptor_is_left_behind():
    before = sorted(os.listdir("/proc/self/fd"))
    isolation = make(lambda i: os._exit(1) if i % 2 else b"")
    isolation.run(b"", 4)
    isolation.run(b"", 1)
    isolation.close()
    assert sorted(os.listdir("/proc/self/fd")) == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_the_processor_time_of_living_and_ended_children_counts_and_waiting_does_not():
    def burn_or_wait(item):
        end = time.process_time() + 0.3
        while item == 0 and time.process_time() < end:
            pass
        if item == 1:
            time.sleep(2)
        return b""

    isolation = make(burn_or_wait)
    before = isolation.processor_seconds()
    isolation.run(b"", 2)
    living = isolation.processor_seconds() - before
    isolation.close()
    ended = isolation.processor_seconds() - before
    assert 0.3 <= living <= ended < 2
