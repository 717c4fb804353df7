import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from swarmd.workers.launch import NICENESS

HERE = Path(__file__).parent


def is_gone(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def wait_until(condition, seconds):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


@pytest.fixture
def parent():
    process = subprocess.Popen(
        [sys.executable, str(HERE / "parent_process.py")],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(HERE)},
        text=True,
    )
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_worker_is_gone_within_two_seconds_of_its_parent_being_killed(parent):
    worker = int(parent.stdout.readline())
    assert psutil.pid_exists(worker)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert wait_until(lambda: is_gone(worker), 2.0)


def test_a_stopped_worker_is_gone_within_two_seconds_of_its_parent_being_killed(parent):
    worker = int(parent.stdout.readline())
    os.kill(worker, signal.SIGSTOP)  # It cannot look for its parent itself: the kernel has to.
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert wait_until(lambda: is_gone(worker), 2.0)


def test_a_worker_whose_parent_is_already_gone_does_not_start():
    command = [sys.executable, "-m", "swarmd.workers.launch", "child_worker", "--fd", "0", "--parent", "1"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(HERE)}, capture_output=True, timeout=30
    )
    assert done.returncode == 1
    assert b"served" not in done.stdout


def test_a_worker_gives_way_to_the_daemon(parent):
    worker = int(parent.stdout.readline())
    assert psutil.Process(worker).nice() == psutil.Process().nice() + NICENESS
