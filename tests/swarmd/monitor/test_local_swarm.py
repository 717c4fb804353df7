import re
import signal
import subprocess
import sys
import time

import psutil
import pytest

from swarmd.monitor.control import ControlError, fetch_status
from swarmd.monitor.history import read_rounds
from swarmd.monitor.local_swarm import free_ports, gpu_environments, next_run_folder, visible_gpus
from swarmd.paths import Home

pytestmark = pytest.mark.swarm


def command(folder, *arguments):
    return [sys.executable, "-m", "swarmd", "swarm", "local", "--home", str(folder), *arguments]


@pytest.fixture
def start(tmp_path):
    started = []

    def start_swarm(*arguments):
        process = subprocess.Popen(
            command(tmp_path, *arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        started.append(process)
        return process

    yield start_swarm
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def wait_until(condition, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.2)
    return False


def answers(home):
    try:
        fetch_status(home.control_socket, 2)
    except ControlError:
        return False
    return True


def node_pids(tmp_path, nodes=2):
    homes = [Home(tmp_path / "run-1" / f"node-{n}") for n in range(1, nodes + 1)]
    assert wait_until(lambda: all(answers(home) for home in homes), 90)
    pids = [home.running_pid() for home in homes]
    return [pid for node in pids for pid in (node, *(c.pid for c in psutil.Process(node).children(True)))]


def is_gone(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_nodes_train_share_and_are_summed_up(tmp_path):
    config = tmp_path / "all.toml"
    config.write_text("[replay]\nlocal_groups = 3\nexternal_groups = 2\n")
    done = subprocess.run(
        command(tmp_path, "--nodes", "2", "--rounds", "4", "--config", str(config)),
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for n in (1, 2):
        rounds = read_rounds(tmp_path / "run-1" / f"node-{n}" / "history.sqlite")
        assert [r.round for r in rounds] == [1, 2, 3, 4]
        assert all(r.local_groups + r.external_groups == 5 for r in rounds)
    table = done.stdout[done.stdout.index("groups accepted") :]
    accepted = re.findall(r"by node-\d\s+(·|\d+)\s+(·|\d+)", table)
    assert [row[i] for i, row in enumerate(accepted)] == ["·", "·"]
    assert all(int(row[1 - i]) > 0 for i, row in enumerate(accepted))
    plot = re.search(r"Plot: (.*)", done.stdout).group(1).strip()
    with open(plot, "rb") as file:
        assert file.read(4) == b"\x89PNG"


def test_one_interrupt_stops_all_nodes_in_order(tmp_path, start):
    swarm = start("--nodes", "2", "--rounds", "0")
    pids = node_pids(tmp_path)
    swarm.send_signal(signal.SIGINT)
    output, _ = swarm.communicate(timeout=60)
    assert swarm.returncode == 0, output
    assert "node-2" in output
    assert all(is_gone(pid) for pid in pids)


def test_nodes_end_with_a_swarm_that_is_killed(tmp_path, start):
    swarm = start("--nodes", "2", "--rounds", "0")
    pids = node_pids(tmp_path)
    swarm.kill()
    assert wait_until(lambda: all(is_gone(pid) for pid in pids), 4)


def test_a_node_that_fails_fails_the_swarm_and_is_named(tmp_path):
    done = subprocess.run(
        command(tmp_path, "--nodes", "2", "--rounds", "1", "--set", "rollout.group_size=0"),
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "node-1, node-2 failed" in done.stderr
    assert "rollout.group_size" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_folder_that_cannot_be_used_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    done = subprocess.run(command(tmp_path / "file"), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "--home" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_wrong_configuration_file_is_one_line_before_any_node_starts(tmp_path):
    config = tmp_path / "all.toml"
    config.write_text("[rollout]\ngroup_size = 0\n")
    done = subprocess.run(
        command(tmp_path, "--config", str(config)), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "rollout.group_size" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run-1" / "node-1").exists()


def test_nodes_have_the_gpus_in_turn(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus(tmp_path / "no driver") == ()
    for bus in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / bus).mkdir()
    gpus = visible_gpus(tmp_path)
    assert gpus == ("0", "1")
    assert [e["CUDA_VISIBLE_DEVICES"] for e in gpu_environments(3, gpus)] == ["0", "1", "0"]
    assert gpu_environments(1, gpus) == [{}]
    assert gpu_environments(2, ("0",)) == [{}, {}]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5,GPU-7")
    assert visible_gpus(tmp_path) == ("GPU-5", "GPU-7")


def test_each_run_gets_a_folder_of_its_own(tmp_path):
    assert next_run_folder(tmp_path).name == "run-1"
    (tmp_path / "run-1").mkdir()
    assert next_run_folder(tmp_path).name == "run-2"


def test_free_ports_differ_from_each_other():
    assert len(set(free_ports(8))) == 8
