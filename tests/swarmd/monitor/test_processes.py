import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import psutil
import pytest

from swarmd.monitor.processes import DAEMON, ProcessSizes, measure

# Starts one child, takes some memory, opens some files, and waits.
PROGRAM = """
import subprocess, sys
child = subprocess.Popen(["sleep", "100"])
memory = b"x" * 30_000_000
files = [open("/dev/null") for _ in range(20)]
print("ready", flush=True)
sys.stdin.read()
child.kill()
"""


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[bytes]]:
    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
        assert process.stdin is not None
        process.stdin.close()


def test_each_process_has_a_name_and_what_a_worker_started_goes_by_it(worker):
    found = {process.name: process for process in measure({os.getpid(): "daemon", worker.pid: "generator"})}
    assert found["daemon"].pid == os.getpid()
    generator, below = found["generator"], found["generator/sleep"]
    assert generator.pid == worker.pid
    assert psutil.Process(below.pid).ppid() == worker.pid
    assert generator.resident_bytes > 30_000_000 > below.resident_bytes > 0
    assert generator.open_files is not None
    assert generator.open_files >= 20 + 3
    assert generator.threads >= 1
    own = psutil.Process()
    assert (found["daemon"].open_files, found["daemon"].threads) == (own.num_fds(), own.num_threads())


def test_a_process_that_is_not_known_goes_by_its_program_and_namesakes_are_numbered():
    with ExitStack() as stack:
        children = [stack.enter_context(subprocess.Popen(["sleep", "100"])) for _ in range(2)]
        try:
            names = [process.name for process in measure({}) if process.pid in {c.pid for c in children}]
        finally:
            for child in children:
                child.kill()
    assert sorted(names) == ["sleep", "sleep#2"]


async def test_the_newest_look_is_kept_and_follows_a_worker_that_was_restarted(worker, monkeypatch):
    monkeypatch.setattr("swarmd.monitor.processes.LOOK_SECONDS", 0.01)
    names = {worker.pid: "trainer"}
    sizes = ProcessSizes(lambda: names)
    assert sizes.latest == ()
    looking = asyncio.ensure_future(sizes.run())
    try:
        for wanted in ("trainer", "verifier-1"):
            names[worker.pid] = wanted
            while wanted not in {process.name for process in sizes.latest}:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        looking.cancel()
    assert DAEMON in {process.name for process in sizes.latest}
