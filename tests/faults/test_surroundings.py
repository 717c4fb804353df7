"""What surrounds a node fails: the disk, the network, the clock. Needs root, `ip` and `faketime`."""

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(900)]

MakeNode = Callable[..., Any]
DISK_BYTES = 64_000_000


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder))
    yield folder
    run("umount", "--lazy", str(folder))


@pytest.fixture
def two_hosts() -> Iterator[tuple[str, str]]:
    """Two network namespaces joined by a cable: 10.77.0.1 and 10.77.0.2."""
    names = f"swarmd-a-{os.getpid()}", f"swarmd-b-{os.getpid()}"
    with ExitStack() as stack:
        for name in names:
            run("ip", "netns", "add", name)
            stack.callback(run, "ip", "netns", "delete", name)
        run(
            "ip",
            "-n",
            names[0],
            "link",
            "add",
            "cable",
            "type",
            "veth",
            "peer",
            "name",
            "cable",
            "netns",
            names[1],
        )
        for number, name in enumerate(names, start=1):
            run("ip", "-n", name, "address", "add", f"10.77.0.{number}/24", "dev", "cable")
            run("ip", "-n", name, "link", "set", "cable", "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
        yield names


def accepted(node: Any) -> int:
    """Groups that a node has accepted from its peers."""
    return sum(peer["accepted"] for peer in node.ask("peers") or ())


def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.5)


def test_a_full_disk_stops_saving_and_nothing_else(make_node: MakeNode, small_disk: Path) -> None:
    node = make_node("disk/home", "--isolated", "--set", "schedule.checkpoint_every_rounds=1").start()
    node.wait_for(lambda _: any((node.home / "checkpoints").glob("checkpoint-*")))
    with (small_disk / "film").open("wb", buffering=0) as film, contextlib.suppress(OSError):
        while True:
            film.write(bytes(100_000))
    assert os.statvfs(small_disk).f_bavail == 0
    stuck = node.wait_for(lambda status: any("no checkpoint" in text for text in status["problems"]))
    kept = sorted((node.home / "checkpoints").glob("checkpoint-*"))
    assert kept
    after = node.wait_for_round(stuck["round"] + 3)
    assert after["state"] == "training"
    assert sorted((node.home / "checkpoints").glob("checkpoint-*")) == kept
    (small_disk / "film").unlink()
    node.wait_for(lambda status: not any("no checkpoint" in text for text in status["problems"]))
    assert node.stop()[0] == 0
    assert "Traceback" not in node.printed()
    node.arguments += ["--rounds", str(after["round"] + 3)]
    node.start()
    assert node.process.wait(timeout=180) == 0
    assert "resumed from" in node.printed()


def test_a_cable_that_is_pulled_and_put_back_costs_only_the_time_between(
    make_node: MakeNode, two_hosts: tuple[str, str]
) -> None:
    listening = make_node("a", "--listen", "/ip4/10.77.0.1/tcp/4001")
    listening.prefix = ["ip", "netns", "exec", two_hosts[0]]
    listening.start()
    address = listening.wait_for(lambda status: status["addresses"])["addresses"][0]
    joining = make_node("b", "--listen", "/ip4/10.77.0.2/tcp/4001", "--join", address)
    joining.prefix = ["ip", "netns", "exec", two_hosts[1]]
    joining.start()
    nodes = (listening, joining)
    wait_until(lambda: all(accepted(node) > 2 for node in nodes))

    run("ip", "-n", two_hosts[0], "link", "set", "cable", "down")
    alone = [node.ask("status")["round"] for node in nodes]
    for node, number in zip(nodes, alone, strict=True):
        node.wait_for_round(number + 3)  # Nobody waits for the other.
    time.sleep(20)
    before = [accepted(node) for node in nodes]
    run("ip", "-n", two_hosts[0], "link", "set", "cable", "up")
    wait_until(lambda: all(accepted(node) > had + 2 for node, had in zip(nodes, before, strict=True)))
    for node in nodes:
        assert node.stop()[0] == 0
        assert "Traceback" not in node.printed()


def test_a_clock_that_jumps_stalls_nothing(make_node: MakeNode, tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    set_clock(clock, "+0")
    library = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    listening = make_node("steady", "--listen", "/ip4/127.0.0.1/tcp/0").start()
    address = listening.wait_for(lambda status: status["addresses"])["addresses"][0]
    jumping = make_node("jumping", "--listen", "/ip4/127.0.0.1/tcp/0", "--join", address)
    # The monotonic clock goes on, as it does on a machine whose wall clock is set.
    jumping.prefix = [
        *("env", f"LD_PRELOAD={library}", f"FAKETIME_TIMESTAMP_FILE={clock}"),
        *("FAKETIME_CACHE_DURATION=1", "FAKETIME_DONT_FAKE_MONOTONIC=1"),
    ]
    jumping.start()
    nodes = (listening, jumping)
    wait_until(lambda: all(accepted(node) > 2 for node in nodes))
    for offset in ("+10", "-10", "+3600", "+0"):
        set_clock(clock, offset)
        time.sleep(2)
        before = [node.ask("status")["round"] for node in nodes]
        for node, number in zip(nodes, before, strict=True):
            status = node.wait_for_round(number + 3)
            assert status["state"] == "training"
        if offset == "+3600":  # Its peer's messages are too old for it now, and still tell the time.
            said = jumping.wait_for(lambda status: (status["clock"]["skew_seconds"] or 0.0) > 3500)
            assert any("s ahead of the only peer that was heard" in text for text in said["problems"])
    had = [accepted(node) for node in nodes]
    wait_until(lambda: all(accepted(node) > count + 2 for node, count in zip(nodes, had, strict=True)))
    for node in nodes:
        assert node.stop()[0] == 0
        assert "Traceback" not in node.printed()


def set_clock(file: Path, offset: str) -> None:
    """How many seconds the clock is ahead from now on."""
    new = file.with_suffix(".new")
    new.write_text(f"{offset}\n")
    new.replace(file)
