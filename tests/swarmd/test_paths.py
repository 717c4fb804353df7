"""Home layout, the lock of a home, and the lock of an identity, with real processes."""

import fcntl
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from swarmd.errors import ConfigError, HomeError, HomeInUseError
from swarmd.paths import Home, default_home, locate_home, lock_identity

HOLD_LOCK = """
import sys, time
from pathlib import Path
from swarmd.paths import Home
home = Home(Path(sys.argv[1]))
home.prepare()
with home.lock():
    print("locked", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "home")
    made.prepare()
    return made


def holder_of(home: Home) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(home.folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    return process


def test_second_process_is_refused_and_told_who_has_the_home(home: Home) -> None:
    holder = holder_of(home)
    try:
        assert home.running_pid() == holder.pid
        with pytest.raises(HomeInUseError, match=rf"process id {holder.pid}") as caught, home.lock():
            pass
        assert caught.value.exit_code == 3
        assert str(home.folder) in str(caught.value)
    finally:
        holder.kill()
        holder.wait()


def test_home_is_free_after_its_node_was_killed(home: Home) -> None:
    holder = holder_of(home)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert home.running_pid() is None
    with home.lock():
        assert home.lock_file.read_text() == f"{os.getpid()}\n"


def test_lock_is_not_inherited_by_a_child_that_outlives_the_node(home: Home) -> None:
    with home.lock():
        child = subprocess.Popen(["sleep", "30"], close_fds=False)
    try:
        assert home.running_pid() is None
    finally:
        child.kill()
        child.wait()


def test_asking_who_runs_does_not_keep_a_node_from_starting(home: Home) -> None:
    assert home.running_pid() is None
    with home.lock():
        assert home.running_pid() == os.getpid()


def test_stale_socket_of_a_killed_run_is_removed_by_the_next(home: Home) -> None:
    home.runtime.mkdir()
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(home.control_socket))
    assert home.control_socket.exists()
    with home.lock():
        assert not home.control_socket.exists()


def test_prepare_keeps_what_is_there(home: Home) -> None:
    home.config_file.write_text("[node]\n")
    home.prepare()
    assert home.config_file.read_text() == "[node]\n"
    assert sorted(entry.name for entry in home.state.iterdir()) == []


def test_home_is_private(home: Home) -> None:
    assert home.folder.stat().st_mode & 0o077 == 0
    with home.lock():
        assert home.runtime.stat().st_mode & 0o077 == 0


def test_socket_path_stays_short_in_a_deep_home(tmp_path: Path) -> None:
    deep = Home(tmp_path / ("d" * 60) / ("e" * 60))
    deep.prepare()
    assert deep.runtime != Home(deep.folder / "other").runtime
    with deep.lock():
        assert len(os.fsencode(deep.control_socket)) < 100
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(deep.control_socket))
    assert not deep.runtime.exists()


def test_runtime_folder_that_another_made_first_is_refused(tmp_path: Path) -> None:
    deep = Home(tmp_path / ("d" * 60) / ("f" * 60))
    deep.prepare()
    deep.runtime.mkdir()
    deep.runtime.chmod(0o777)
    try:
        with pytest.raises(HomeError, match="only this user can write"), deep.lock():
            pass
    finally:
        deep.runtime.rmdir()


def test_home_that_is_a_file_is_one_clear_line(tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("mine")
    with pytest.raises(HomeError, match="cannot be written") as caught:
        Home(occupied).prepare()
    assert "\n" not in str(caught.value)
    assert occupied.read_text() == "mine"


def test_full_disk_is_found_before_anything_starts(home: Home) -> None:
    # A real write error: the probe file is made longer than this process may write.
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(HomeError, match="free some space"):
            home.prepare()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert list(home.state.iterdir()) == []


def test_option_wins_over_environment_and_environment_over_default(tmp_path: Path) -> None:
    environment = {"SWARMD_HOME": str(tmp_path / "named"), "XDG_DATA_HOME": str(tmp_path)}
    assert locate_home(tmp_path / "given", environment).folder == tmp_path / "given"
    assert locate_home(None, environment).folder == tmp_path / "named"
    assert locate_home(None, {"XDG_DATA_HOME": str(tmp_path)}).folder == tmp_path / "swarmd"


def test_default_home_is_the_platforms_data_folder() -> None:
    assert default_home({"HOME": "/home/a"}, "linux") == Path("/home/a/.local/share/swarmd")
    assert default_home({"HOME": "/Users/a"}, "darwin") == Path("/Users/a/Library/Application Support/swarmd")


def test_unknown_user_is_told_to_give_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(ConfigError, match="SWARMD_HOME"):
        default_home({}, "linux")


def test_copied_identity_cannot_run_twice_and_the_refusal_names_it() -> None:
    peer_id = f"12D3KooTest{os.getpid()}"
    with lock_identity(peer_id):
        with pytest.raises(HomeInUseError, match=peer_id), lock_identity(peer_id):
            pass
        with lock_identity(peer_id + "other"):
            pass
    with lock_identity(peer_id):
        pass


def test_the_lock_of_an_identity_leaves_nothing_and_holds_against_who_opened_it_before() -> None:
    peer_id = "12D3Koo" + os.urandom(8).hex()
    file = Path("/tmp") / f"swarmd-{os.getuid()}-identities" / peer_id
    with lock_identity(peer_id):
        opened_before = os.open(file, os.O_RDWR)
    assert not file.exists()
    with lock_identity(peer_id):
        # What was removed is no longer the lock, whoever locks it now.
        fcntl.flock(opened_before, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(HomeInUseError), lock_identity(peer_id):
            pass
    os.close(opened_before)


def test_many_who_take_turns_at_an_identity_never_hold_it_together(tmp_path: Path) -> None:
    peer_id = "12D3Koo" + os.urandom(8).hex()
    script = f"""
import sys, time
from pathlib import Path
from swarmd.errors import HomeInUseError
from swarmd.paths import lock_identity
inside, held = Path({str(tmp_path / "inside")!r}), 0
until = time.monotonic() + 2
while time.monotonic() < until or not held:
    try:
        with lock_identity({peer_id!r}):
            inside.mkdir()  # Raises when somebody else is inside.
            inside.rmdir()
            held += 1
    except HomeInUseError:
        pass
"""
    processes = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(4)]
    assert [process.wait(timeout=60) for process in processes] == [0] * 4


def test_peer_id_cannot_name_a_file_elsewhere() -> None:
    with pytest.raises(ValueError, match="not a peer id"), lock_identity("../x"):
        pass
