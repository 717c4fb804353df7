import os
import subprocess
import sys

import pytest

from swarmd.errors import SwarmdError
from swarmd.monitor.history import History, RoundRecord
from swarmd.monitor.plot import plot_in_subprocess, smooth


async def write_history(path, rounds=20):
    async with History(path, max_rounds=100) as history:
        for number in range(1, rounds + 1):
            await history.append(
                RoundRecord(round=number, ended_at=0.0, policy_version=number, own_reward=number / 100)
            )


async def test_several_histories_become_one_png(tmp_path):
    one, two, out = tmp_path / "1.sqlite", tmp_path / "2.sqlite", tmp_path / "reward.png"
    await write_history(one)
    await write_history(two)
    await plot_in_subprocess({"node 1": one, "node 2": two}, out)
    content = out.read_bytes()
    assert content.startswith(b"\x89PNG")
    await plot_in_subprocess({"node 1": one}, out)
    assert out.read_bytes() != content
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


async def test_a_history_that_does_not_exist_yet_is_an_empty_plot(tmp_path):
    out = tmp_path / "reward.png"
    await plot_in_subprocess({"node": tmp_path / "absent.sqlite"}, out)
    assert out.read_bytes().startswith(b"\x89PNG")


async def test_a_plot_that_cannot_be_written_is_one_line(tmp_path):
    path = tmp_path / "history.sqlite"
    await write_history(path, 1)
    with pytest.raises(SwarmdError) as caught:
        await plot_in_subprocess({"node": path}, tmp_path / "no such folder" / "reward.png")
    assert "could not be drawn" in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_a_plot_that_takes_too_long_is_given_up(tmp_path):
    with pytest.raises(SwarmdError, match="within"):
        await plot_in_subprocess({"node": tmp_path / "history.sqlite"}, tmp_path / "reward.png", 0.01)


def test_a_plot_whose_daemon_is_gone_is_not_drawn(tmp_path):
    out = tmp_path / "reward.png"
    command = [sys.executable, "-m", "swarmd.monitor.plot", tmp_path / "history.sqlite", out]
    # Its parent is another one by now: the kernel has adopted it.
    assert subprocess.run([*command, "--parent", str(os.getppid())]).returncode == 1
    assert not out.exists()


def test_the_daemon_can_ask_for_a_plot_without_matplotlib():
    code = "import sys, swarmd.monitor.plot; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_smoothing_is_the_mean_of_what_came_before():
    assert smooth([1.0, 2.0, 3.0, 4.0], span=2) == [1.0, 1.5, 2.5, 3.5]
