import asyncio
import contextlib
import gc
import itertools
import os
import signal
import time
from pathlib import Path

import psutil
import pytest
import uvloop
from child_worker import CRASH, ECHO, FORK, REFUSE, REFUSE_FOR_GOOD, SLEEP, UNKNOWN, WORK, Number, Text

from swarmd.errors import (
    CheckpointError,
    ConfigError,
    GenerationError,
    ModelError,
    SwarmdError,
    TrainingError,
    WeightChannelError,
    WorkerBudgetError,
    WorkerError,
    WorkerRefusalError,
)
from swarmd.workers.framing import Method
from swarmd.workers.supervisor import Worker, WorkerLimits

HERE = str(Path(__file__).parent)
QUICK = WorkerLimits(
    start_timeout_seconds=30,
    restart_min_seconds=0.05,
    restart_max_seconds=0.2,
    stop_timeout_seconds=4,
)


async def nothing_to_do(worker):
    """An on_start without calls."""


def is_gone(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def make_worker(limits=QUICK, on_start=nothing_to_do, environment=None, **options):
    environment = {"PYTHONPATH": HERE, **(environment or {})}
    return Worker("child", "child_worker", limits, on_start, environment=environment, **options)


@contextlib.asynccontextmanager
async def running(**options):
    worker = make_worker(**options)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, SwarmdError):
            await task


async def test_a_call_waits_for_the_worker_and_returns_the_typed_reply():
    async with running() as worker:
        assert await worker.call(ECHO, Text("hé\n"), 30) == Text("hé\n")
        assert worker.state == "ready"
        assert psutil.pid_exists(worker.pid)


async def test_megabytes_pass_in_both_directions():
    async with running() as worker:
        text = Text("x" * 5_000_000)
        assert await worker.call(ECHO, text, 30) == text


async def test_calls_made_at_once_are_each_answered_with_their_own_reply():
    async with running() as worker:
        replies = await asyncio.gather(*(worker.call(ECHO, Text(str(n)), 30) for n in range(50)))
        assert replies == [Text(str(n)) for n in range(50)]


async def test_on_start_may_call_before_the_worker_is_ready_for_others():
    seen = []

    async def on_start(worker):
        seen.append((worker.state, await worker.call(ECHO, Text("initialise"), 30)))

    async with running(on_start=on_start) as worker:
        await worker.wait_ready()
        assert seen == [("starting", Text("initialise"))]


async def test_a_killed_worker_fails_the_call_in_flight_and_is_restarted_for_the_next():
    starts = []

    async def on_start(worker):
        starts.append(worker.pid)

    async with running(on_start=on_start) as worker:
        await worker.wait_ready()
        first = worker.pid
        in_flight = asyncio.create_task(worker.call(SLEEP, Number(60), 60))
        await asyncio.sleep(0.2)
        os.kill(first, signal.SIGKILL)
        with pytest.raises(WorkerError, match="SIGKILL"):
            await in_flight
        assert await worker.call(ECHO, Text("again"), 30) == Text("again")
        assert worker.restarts == 1
        assert worker.pid != first
        assert starts == [first, worker.pid]


async def test_a_hung_handler_is_killed_at_its_deadline():
    async with running() as worker:
        await worker.wait_ready()
        hung = worker.pid
        with pytest.raises(WorkerError, match=r"did not answer sleep within 0\.3 s"):
            await worker.call(SLEEP, Number(600), 0.3)
        assert is_gone(hung)
        assert await worker.call(ECHO, Text("again"), 30) == Text("again")


async def test_a_pause_of_the_daemon_itself_is_not_blamed_on_the_worker():
    async with running() as worker:
        await worker.wait_ready()
        call = asyncio.create_task(worker.call(SLEEP, Number(0.1), 1.0))
        await asyncio.sleep(0.05)
        time.sleep(1.5)  # noqa: ASYNC251 # As if the process had been stopped: the answer is there, unheard.
        assert await call == Number(0.1)
        assert worker.restarts == 0


async def test_a_refused_call_carries_one_line_and_the_worker_lives_on(tmp_path):
    log = tmp_path / "child.log"
    async with running(log_path=log) as worker:
        await worker.wait_ready()
        pid = worker.pid
        with pytest.raises(WorkerError) as caught:
            await worker.call(REFUSE, Text("no such\nthing"), 30)
        assert str(caught.value) == "child worker: no such thing"
        assert await worker.call(ECHO, Text("still here"), 30) == Text("still here")
        assert worker.pid == pid
    assert "Traceback" in log.read_text()


async def test_an_unexpected_exception_ends_the_worker_and_its_last_words_are_told():
    async with running() as worker:
        with pytest.raises(WorkerError, match="exited with code 1; its last words: RuntimeError: broken"):
            await worker.call(CRASH, Text("broken"), 30)
        assert await worker.call(ECHO, Text("again"), 30) == Text("again")


async def test_an_unknown_method_and_a_wrong_reply_type_are_worker_errors():
    async with running() as worker:
        with pytest.raises(WorkerError, match="unknown method 'unknown'"):
            await worker.call(UNKNOWN, Text(""), 30)
        with pytest.raises(WorkerError, match="answered echo wrongly"):
            await worker.call(Method("echo", Text, Number), Text("not a number"), 30)
        assert worker.restarts == 0


async def test_too_many_fast_failures_end_with_the_workers_last_words(tmp_path):
    limits = WorkerLimits(restart_min_seconds=0.01, restart_max_seconds=0.02, max_fast_failures=3)
    worker = make_worker(limits, environment={"CHILD_DIES_SAYING": "disk is on fire"}, on_start=forever)
    waiting = asyncio.create_task(worker.call(ECHO, Text(""), 30))
    with pytest.raises(WorkerBudgetError, match=r"child worker failed 3 times.*code 3.*disk is on fire"):
        await worker.run()
    with pytest.raises(WorkerError, match="disk is on fire"):
        await waiting
    assert worker.state == "stopped"
    assert worker.restarts == 2


SLOW_FAILURES = WorkerLimits(
    restart_min_seconds=0.01, restart_max_seconds=0.02, max_fast_failures=3, failure_window_seconds=0.001
)
"""No two failures are within this window: that takes a process to start."""


async def test_failures_without_work_between_count_however_far_apart_they_are():
    async def answers_but_never_works(worker):
        await worker.call(ECHO, Text(""), 30)
        await worker.call(CRASH, Text("cannot sample"), 30)

    with pytest.raises(WorkerBudgetError, match=r"child worker failed 3 times.*cannot sample"):
        await make_worker(SLOW_FAILURES, on_start=answers_but_never_works).run()


async def test_failures_before_some_work_are_forgotten_after_the_window():
    async with running(limits=SLOW_FAILURES) as worker:
        for _ in range(5):
            await worker.call(WORK, Text(""), 30)
            with pytest.raises(WorkerError):
                await worker.call(CRASH, Text("once more"), 30)
        assert await worker.call(WORK, Text("goes on"), 30) == Text("goes on")
        assert worker.restarts == 5


async def forever(worker):
    await asyncio.Event().wait()


async def test_pauses_between_restarts_grow():
    limits = WorkerLimits(restart_min_seconds=0.2, restart_max_seconds=60, max_fast_failures=4)
    times = []

    def note(event):
        if event.kind in ("starting", "failed"):
            times.append((event.kind, time.monotonic()))

    worker = make_worker(limits, environment={"CHILD_DIES_SAYING": "no"}, on_start=forever, on_event=note)
    with pytest.raises(WorkerBudgetError):
        await worker.run()
    pauses = [
        start - failure for (kind, failure), (_, start) in itertools.pairwise(times) if kind == "failed"
    ]
    assert len(pauses) == 3
    assert pauses[0] >= 0.15
    assert pauses[1] >= 0.3
    assert pauses[2] >= 0.6


async def test_the_pause_after_some_work_is_the_first_one_again():
    limits = WorkerLimits(restart_min_seconds=0.05, restart_max_seconds=60, max_fast_failures=20)
    times = []

    def note(event):
        if event.kind in ("starting", "failed"):
            times.append(time.monotonic())

    async with running(limits=limits, on_event=note) as worker:
        for _ in range(9):  # The ninth would wait for 13 seconds.
            await worker.call(WORK, Text(""), 30)
            with pytest.raises(WorkerError):
                await worker.call(CRASH, Text("once more"), 30)
        await worker.wait_ready()
    _, *pauses_and_lives = itertools.pairwise(times)
    assert max(start - failure for failure, start in pauses_and_lives[::2]) < 5


async def test_a_refused_initialisation_is_tried_again_unless_trying_cannot_help():
    async def refused(worker):
        await worker.call(REFUSE, Text("not yet"), 30)

    async def refused_for_good(worker):
        await worker.call(REFUSE_FOR_GOOD, Text("all checkpoints are torn"), 30)

    limits = WorkerLimits(restart_min_seconds=0.01, max_fast_failures=2)
    with pytest.raises(WorkerBudgetError, match="not yet"):
        await make_worker(limits, on_start=refused).run()
    worker = make_worker(limits, on_start=refused_for_good)
    with pytest.raises(CheckpointError, match=r"^all checkpoints are torn$"):
        await worker.run()
    assert worker.restarts == 0


@pytest.mark.parametrize(
    "error", [ConfigError, ModelError, CheckpointError, TrainingError, GenerationError, WeightChannelError]
)
async def test_what_a_restart_cannot_cure_is_not_tried_again(error):
    async def refused(worker):
        raise WorkerRefusalError("child worker: no", error.__name__, "no")

    worker = make_worker(on_start=refused)
    with pytest.raises(error, match=r"^no$"):
        await worker.run()
    assert worker.restarts == 0


async def test_a_worker_that_is_not_ready_in_time_is_restarted():
    hang_first = iter([True])

    async def on_start(worker):
        if next(hang_first, False):
            await asyncio.Event().wait()

    limits = WorkerLimits(start_timeout_seconds=1.5, restart_min_seconds=0.01)
    async with running(limits=limits, on_start=on_start) as worker:
        await asyncio.wait_for(worker.wait_ready(), 30)
        assert worker.restarts == 1


async def test_a_worker_without_a_sign_of_life_is_restarted():
    limits = WorkerLimits(heartbeat_timeout_seconds=2.5, restart_min_seconds=0.01)
    async with running(limits=limits) as worker:
        await worker.wait_ready()
        frozen = worker.pid
        os.kill(frozen, signal.SIGSTOP)
        with pytest.raises(WorkerError, match=r"no sign of life for 2\.5 s"):
            await worker.call(ECHO, Text(""), 60)
        assert is_gone(frozen)
        assert await worker.call(ECHO, Text("again"), 30) == Text("again")


async def test_cancelling_stops_the_worker_in_order():
    worker = make_worker()
    task = asyncio.create_task(worker.run())
    await worker.wait_ready()
    pid = worker.pid
    in_flight = asyncio.create_task(worker.call(SLEEP, Number(0.3), 60))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await in_flight == Number(0.3)
    assert worker.state == "stopped"
    assert is_gone(pid)
    with pytest.raises(WorkerError, match="stopped"):
        await worker.call(ECHO, Text(""), 1)


async def test_a_worker_that_is_still_starting_is_not_waited_for():
    starting = asyncio.Event()

    async def on_start(worker):
        starting.set()
        await worker.call(SLEEP, Number(600), 600)

    worker = make_worker(WorkerLimits(stop_timeout_seconds=60), on_start=on_start)
    task = asyncio.create_task(worker.run())
    await starting.wait()
    pid = worker.pid
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 10)
    assert is_gone(pid)


async def test_a_worker_that_does_not_stop_is_made_to(tmp_path):
    limits = WorkerLimits(stop_timeout_seconds=1.0)
    log = tmp_path / "child.log"
    worker = make_worker(limits, environment={"CHILD_LINGERS_SECONDS": "600"}, log_path=log)
    task = asyncio.create_task(worker.run())
    await worker.wait_ready()
    pid = worker.pid
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 20)
    assert is_gone(pid)
    assert "served" in log.read_text()


async def test_what_a_worker_started_ends_with_it():
    async with running() as worker:
        grandchild = int((await worker.call(FORK, Text(""), 30)).value)
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(WorkerError):
            await worker.call(ECHO, Text(""), 30)
        await worker.call(ECHO, Text(""), 30)
        assert is_gone(grandchild)


async def test_a_cancelled_call_does_not_let_the_next_one_overtake_it():
    async with running() as worker:
        await worker.wait_ready()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await worker.call(SLEEP, Number(0.5), 30)
        assert await worker.call(ECHO, Text("mine"), 30) == Text("mine")
        assert worker.restarts == 0


async def test_progress_is_shown_while_the_worker_starts():
    events = []

    async def on_start(worker):
        await worker.call(ECHO, Text(""), 30)

    async with running(on_start=on_start, on_event=events.append) as worker:
        await worker.wait_ready()
    assert [event.kind for event in events] == ["starting", "progress", "ready", "stopped"]
    assert events[1].text == "warming up"


async def under_uvloop(scenario):
    """Runs it on the loop that the daemon has. The thread must outlive the workers it starts."""

    def run():
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(scenario())

    return await asyncio.to_thread(run)


async def test_workers_run_under_uvloop():
    async def scenario():
        async with running() as worker:
            with pytest.raises(WorkerError):
                await worker.call(CRASH, Text("broken"), 30)
            return await worker.call(ECHO, Text("again"), 30)

    assert await under_uvloop(scenario) == Text("again")


async def test_restarts_leave_nothing_open():
    async def scenario():
        async with running() as worker:
            await worker.wait_ready()
            before = psutil.Process().num_fds()
            for _ in range(3):
                with pytest.raises(WorkerError):
                    await worker.call(CRASH, Text("again"), 30)
                await worker.wait_ready()
            return psutil.Process().num_fds() - before

    gc.disable()  # It would close what nobody else does, sooner or later.
    try:
        assert await under_uvloop(scenario) <= 0
    finally:
        gc.enable()
