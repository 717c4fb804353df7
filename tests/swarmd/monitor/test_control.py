import asyncio
import contextlib
import os
import socket
import stat
import subprocess
import sys

import pytest
from sample_status import sample_peers, sample_status

from swarmd.errors import SwarmdError
from swarmd.monitor.control import (
    ControlError,
    current_or_last_known,
    fetch_peers,
    fetch_status,
    judge_peer,
    request_checkpoint,
    request_stop,
)
from swarmd.monitor.control_server import ControlServer
from swarmd.monitor.status import LastKnown, save_last_known
from swarmd.paths import Home


@contextlib.asynccontextmanager
async def served(path, stop=lambda: None, status=sample_status, save=None, judge=None):
    async with ControlServer(path, status=status, peers=sample_peers, judge=judge, save=save, stop=stop):
        yield


async def test_a_client_gets_status_and_peers_as_the_node_has_them(tmp_path):
    path = tmp_path / "control.sock"
    async with served(path):
        assert await asyncio.to_thread(fetch_status, path) == sample_status()
        assert await asyncio.to_thread(fetch_peers, path) == sample_peers()


async def test_stop_reaches_the_node_and_names_its_process(tmp_path):
    path = tmp_path / "control.sock"
    asked = []
    async with served(path, stop=lambda: asked.append(True)):
        reply = await asyncio.to_thread(request_stop, path)
    assert asked == [True]
    assert reply.pid == os.getpid()


async def test_a_checkpoint_is_written_before_the_answer_and_a_failure_is_told(tmp_path):
    path = tmp_path / "control.sock"
    outcomes = ["checkpoints/checkpoint-7", SwarmdError("no checkpoint: the disk is full")]

    async def save():
        await asyncio.sleep(0)
        outcome = outcomes.pop(0)
        if isinstance(outcome, SwarmdError):
            raise outcome
        return outcome

    async with served(path, save=save):
        reply = await asyncio.to_thread(request_checkpoint, path, 5.0)
        assert reply.path == "checkpoints/checkpoint-7"
        with pytest.raises(ControlError, match="no checkpoint: the disk is full"):
            await asyncio.to_thread(request_checkpoint, path, 5.0)


async def test_only_this_user_may_connect_and_the_socket_goes_with_the_server(tmp_path):
    path = tmp_path / "control.sock"
    async with served(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()
    with pytest.raises(ControlError, match="no node answers"):
        await asyncio.to_thread(fetch_status, path)


async def test_a_socket_left_by_a_killed_run_is_replaced(tmp_path):
    path = tmp_path / "control.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    with pytest.raises(ControlError):
        await asyncio.to_thread(fetch_status, path)
    async with served(path):
        assert (await asyncio.to_thread(fetch_status, path)).round == 60


async def test_a_node_that_does_not_answer_is_said_in_time(tmp_path):
    path = tmp_path / "control.sock"
    deaf = socket.socket(socket.AF_UNIX)
    deaf.bind(str(path))
    deaf.listen()
    try:
        with pytest.raises(ControlError, match=r"within 0\.2 s"):
            await asyncio.to_thread(fetch_status, path, 0.2)
    finally:
        deaf.close()


async def test_a_socket_that_cannot_be_opened_is_one_line(tmp_path):
    with pytest.raises(SwarmdError, match="control socket"):
        async with served(tmp_path / ("x" * 120)):
            pass


async def test_a_home_answers_running_last_known_or_nothing(tmp_path):
    home = Home(tmp_path / "home")
    home.prepare()
    assert current_or_last_known(home) is None
    save_last_known(home.status_file, LastKnown(sample_status(round=7), sample_peers()))
    assert current_or_last_known(home).status.state == "stopped"
    with home.lock():
        with pytest.raises(ControlError):
            current_or_last_known(home)
        async with served(home.control_socket):
            found = await asyncio.to_thread(current_or_last_known, home)
            assert found.status.state == "training"
            assert found.status.round == 60


def test_the_client_imports_nothing_heavy():
    code = (
        "import sys, swarmd.monitor.control; "
        "print([m for m in ('aiohttp', 'asyncio', 'rich', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_the_operators_word_on_a_peer_reaches_the_node_and_its_refusal_comes_back(tmp_path):
    path = tmp_path / "control.sock"

    def judge(peer_id, word):
        if word == "praise":
            raise SwarmdError("a peer is judged by ban, allow, forget")
        return f"{peer_id} {word}"

    async with served(path, judge=judge):
        judged = await asyncio.to_thread(judge_peer, path, "12D3KooW", "ban")
        assert judged.state == "12D3KooW ban"
        with pytest.raises(ControlError, match="judged by ban, allow, forget"):
            await asyncio.to_thread(judge_peer, path, "12D3KooW", "praise")
