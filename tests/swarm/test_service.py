"""A node as a service: it tells the service manager what it does, and reloads and saves when asked."""

import contextlib
import fcntl
import os
import pty
import re
import signal
import socket
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.swarm

MakeNode = Callable[..., Any]


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket that a service manager would listen on, named in the environment as it does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        name = f"swarmd-test-{os.getpid()}"
        listening.bind("\0" + name)
        listening.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + name)
        monkeypatch.setenv("WATCHDOG_USEC", "3000000")
        yield listening


def hear(manager: socket.socket, wanted: str) -> list[str]:
    """All that is said until a message begins as wanted, that one included."""
    heard = [""]
    while not heard[-1].startswith(wanted):
        heard.append(manager.recv(4096).decode())
    return heard[1:]


def test_the_manager_hears_of_each_step_and_a_hangup_reloads(
    make_node: MakeNode, manager: socket.socket
) -> None:
    node = make_node("home", "--listen", "/ip4/127.0.0.1/tcp/0").start()
    before = hear(manager, "READY=1")
    assert "WATCHDOG=1" in before  # Also while it loads: that may take longer than the watchdog waits.
    node.wait_for_round(1)

    peer = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWJ3rVxTqS4ZC5iMxKsuV1b6qcvKbDbVUQ2n9TgYF5fox1"
    (node.home / "config.toml").write_text(
        '[monitor]\nlog_level = "debug"\n[replay]\nlocal_groups = 2\n'
        f'[swarm]\njoin = ["{peer}"]\n[schedule]\ncheckpoint_every_rounds = 1\n'
    )
    node.process.send_signal(signal.SIGHUP)
    hear(manager, "RELOADING=1\nMONOTONIC_USEC=")
    hear(manager, "READY=1")
    log = (node.home / "logs" / "node.log").read_text()
    assert re.search("configuration reloaded: swarm.join = .*, monitor.log_level = debug", log)
    assert "these need a restart: replay.local_groups" in log
    node.wait_for(lambda status: [entry["address"] for entry in status["bootstrap"]] == [peer])
    node.wait_for(lambda _: any((node.home / "checkpoints").glob("checkpoint-*")))

    (node.home / "config.toml").write_text("[monitor]\nlog_level = 7\n")
    node.process.send_signal(signal.SIGHUP)
    hear(manager, "READY=1")
    assert re.search(
        "the configuration is not reloaded.*log_level", (node.home / "logs" / "node.log").read_text()
    )
    (node.home / "config.toml").unlink()

    done = subprocess.run(node.command("checkpoint"), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (Path(done.stdout.strip()) / "weights.safetensors").exists()
    assert any(re.fullmatch(r"STATUS=training, round \d+", text) for text in hear(manager, "STATUS=training"))
    assert node.stop()[0] == 0
    assert int(hear(manager, "STOPPING=1\nEXTEND_TIMEOUT_USEC=")[-1].rpartition("=")[2]) >= 15_000_000


def test_a_closed_terminal_ends_the_node_in_order(make_node: MakeNode) -> None:
    node = make_node("home", "--isolated")
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [*node.command("start"), "--model", "tiny", "--engine", "transformers", "--isolated"],
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(its, termios.TIOCSCTTY, 0),
    )
    node.process = process
    os.close(its)
    os.set_blocking(ours, False)
    while not node.ask("status") or node.ask("status")["round"] < 1:
        drain(ours)
        assert process.poll() is None
        time.sleep(0.1)
    os.close(ours)  # The window is closed: the kernel sends SIGHUP.
    assert process.wait(60) == 0
    assert node.ask("status")["state"] == "stopped"


def test_a_detached_node_outlives_its_terminal_and_reloads_on_a_hangup(make_node: MakeNode) -> None:
    node = make_node("home")
    ours, its = pty.openpty()
    with subprocess.Popen(
        [*node.command("start"), *("--model", "tiny", "--engine", "transformers", "--isolated", "--detach")],
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(its, termios.TIOCSCTTY, 0),
    ) as starting:
        os.close(its)
        assert starting.wait(120) == 0
    os.close(ours)
    pid = int((node.home / "lock").read_text())
    try:
        os.kill(pid, signal.SIGHUP)
        log = node.home / "logs" / "node.log"
        deadline = time.monotonic() + 60
        while "configuration reloaded" not in log.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert node.ask("status")["state"] in ("starting", "training", "waiting")
        assert subprocess.run(node.command("stop"), timeout=60).returncode == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def drain(terminal: int) -> None:
    try:
        while os.read(terminal, 65536):
            pass
    except BlockingIOError:
        pass
