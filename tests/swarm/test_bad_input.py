"""Bad input and bad luck: each ends as one line that says what and what to do, with the right exit
code, no traceback, nothing overwritten and nothing left behind; or it does not end the node at all.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from swarmd.models.resolve import resolve

pytestmark = pytest.mark.swarm

MakeNode = Callable[..., Any]
PEER = "12D3KooWMepTrqqQ1WJbAAiP3hmXyebN4Z3aEeUk3tt578DkX8iz"
LOOPBACK = ("--listen", "/ip4/127.0.0.1/tcp/0")
# RSA key in libp2p's file format, as other nodes of the libp2p family write it.
RSA_KEY = bytes.fromhex("080012a80430820224") + bytes(range(256)) * 2


def start(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "swarmd", "start", "--home", str(home), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("swarmd-*")}


def wait_until_it_listens(process: subprocess.Popen[bytes]) -> None:
    """Until a starting process has its own way with SIGTERM; before that Python itself ends by it."""
    caught = 0
    while not caught & 1 << signal.SIGTERM - 1:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        caught = int(next(line for line in lines if line.startswith("SigCgt:")).split()[1], 16)
        time.sleep(0.005)


def refuses(home: Path, code: int, said: str, *arguments: str) -> None:
    """Start a node that must refuse at once: one line, and what was in its home is as before."""
    before, began = contents(home), time.monotonic()
    done = start(home, *arguments)
    assert done.returncode == code, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("swarmd: ")
    assert said in line
    assert done.stdout == ""
    assert time.monotonic() - began < 30
    after = contents(home)
    assert {path: after.get(path) for path in before} == before


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (b"", "is empty; restore it"),
        (b"-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQ\n", "not an Ed25519 key"),
        (RSA_KEY, "not an Ed25519 key"),
        (bytes(range(68)), "not an Ed25519 key"),
    ],
    ids=["empty", "pem", "rsa", "noise"],
)
def test_a_key_that_is_none_is_refused_and_stays(tmp_path: Path, key: bytes, said: str) -> None:
    (tmp_path / "identity.key").write_bytes(key)
    refuses(tmp_path, 3, said, "--isolated")


def test_a_key_behind_a_folder_or_a_dead_link_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "identity.key").mkdir()
    refuses(tmp_path, 3, "Is a directory", "--isolated")
    (tmp_path / "identity.key").rmdir()
    (tmp_path / "identity.key").symlink_to(tmp_path / "unmounted" / "identity.key")
    refuses(tmp_path, 3, "no identity file", "--isolated")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("config.json", "{", "config.json"),
        ("config.json", "[]", "no JSON object"),
        ("tokenizer.json", '{"model": ', "tokenizer.json"),
        ("model.safetensors", "\0" * 4096, "not a safetensors file"),
    ],
)
def test_a_damaged_model_is_refused_before_anything_heavy(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for path in resolve("tiny").path.glob("*.*"):
        (model / path.name).write_bytes(path.read_bytes())
    (model / name).write_text(text)
    refuses(tmp_path / "home", 2, said, "--isolated", "--model", str(model))


def test_a_torn_model_and_one_larger_than_memory_are_refused(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for path in resolve("tiny").path.glob("*.*"):
        (model / path.name).write_bytes(path.read_bytes())
    weights = model / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 100)
    refuses(tmp_path / "home", 2, "is torn", "--isolated", "--model", str(model))
    # A file of holes: as large as it says, and nothing in it.
    size = psutil.virtual_memory().total * 2
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    weights.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(weights, 8 + len(header) + size)
    if not Path("/dev/nvidiactl").exists():
        done = start(tmp_path / "home", "--isolated", "--model", str(model))
        assert (done.returncode, "choose a smaller model" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "tinny"), "did you mean tiny"),
        (("--join", "banana"), "swarm.join"),
        (("--join", "/ip4/203.0.113.5/tcp/31337"), "ending in /p2p/PEERID"),
        (("--join", f"/ip4/999.2.3.4/tcp/1/p2p/{PEER}"), "swarm.join"),
        (("--listen", "/ip4/999.0.0.1/tcp/1"), "swarm.listen"),
        (("--set", "node.seed=-99999999999999999999999"), "node.seed"),
        (
            (
                *("--set", "training.schedule=linear"),
                *("--set", "training.schedule_steps=10", "--set", "training.warmup_steps=20"),
            ),
            "training.schedule_steps",
        ),
        (("--set", "rollout.max_new_tokens=5000"), "rollout.max_new_tokens"),
        (("--device", "cpu", "--set", "weights.channel=cuda_ipc"), "not on the same GPU"),
    ],
)
def test_a_wrong_value_is_found_before_anything_heavy(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    refuses(tmp_path, 2, said, *arguments)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"[node\n", "not valid TOML"),
        (b"\xff\xfe\x00", "not valid TOML"),
        (b'[node]\nrounds = "3"\n', "node.rounds must be a whole number"),
        (b"[node]\nround = 3\n", "did you mean 'node.rounds'"),
    ],
)
def test_a_broken_config_file_is_named_and_stays(tmp_path: Path, text: bytes, said: str) -> None:
    (tmp_path / "config.toml").write_bytes(text)
    refuses(tmp_path, 2, said)


def test_a_home_that_is_a_file_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("precious")
    done = start(home, "--isolated")
    assert done.returncode == 1
    assert "cannot be written" in done.stderr
    assert home.read_text() == "precious"


def test_what_is_in_the_way_of_a_starting_node_is_named(tmp_path: Path) -> None:
    (tmp_path / "logs" / "node.log").mkdir(parents=True)
    done = start(tmp_path, "--isolated")
    assert done.returncode == 1
    assert "node.log cannot be opened" in done.stderr.splitlines()[-1]
    (tmp_path / "logs" / "node.log").rmdir()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = start(tmp_path, "--isolated", "--set", f"monitor.metrics_listen={address}")
    assert done.returncode == 1
    assert "choose another monitor.metrics_listen" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert list(tmp_path.glob("run/*")) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_starting_ends_the_node_with_exit_0(
    make_node: MakeNode, gone: Callable[[list[psutil.Process]], bool], number: signal.Signals
) -> None:
    for delay in (0.01, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5):  # While it imports.
        early = make_node(f"early {delay}", *LOOPBACK).start()
        wait_until_it_listens(early.process)
        time.sleep(delay)
        assert early.stop(number)[0] == 0, delay
        assert "Traceback" not in early.printed()
    node = make_node("loading", *LOOPBACK).start()
    while "worker starting" not in node.printed():
        assert node.process.poll() is None
        time.sleep(0.02)
    children = node.children()
    code, seconds = node.stop(number)
    assert (code, seconds < 15) == (0, True)
    assert gone(children)
    assert "Traceback" not in node.printed()
    assert f"swarmd-{node.process.pid}" not in shared_memory()


def test_a_node_has_bad_luck_all_its_life(
    make_node: MakeNode, gone: Callable[[list[psutil.Process]], bool], tmp_path: Path
) -> None:
    node = make_node("a home, ünlucky", "--isolated", "--set", "schedule.checkpoint_every_rounds=1").start()
    first = node.wait_for_round(2)

    # No room for the trainer's files: saving stops and is told, training goes on, saving resumes.
    trainer = psutil.Process(first["workers"]["trainer"]["pid"])
    room = trainer.rlimit(psutil.RLIMIT_FSIZE)
    trainer.rlimit(psutil.RLIMIT_FSIZE, (100_000, room[1]))
    stuck = node.wait_for(lambda status: any("no checkpoint" in text for text in status["problems"]))
    saved = sorted((node.home / "checkpoints").glob("checkpoint-*"))
    assert saved
    node.wait_for_round(stuck["round"] + 2)
    assert sorted((node.home / "checkpoints").glob("checkpoint-*")) == saved
    trainer.rlimit(psutil.RLIMIT_FSIZE, room)
    node.wait_for(lambda status: not any("no checkpoint" in text for text in status["problems"]))

    # In a hurry: the second signal ends it at once, and takes everything along.
    children = node.children()
    node.process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    node.process.send_signal(signal.SIGINT)
    began = time.monotonic()
    assert node.process.wait(timeout=60) == 1
    assert time.monotonic() - began < 5
    assert "stopped at once" in node.printed().splitlines()[-1]
    assert gone(children)
    assert f"swarmd-{node.process.pid}" not in shared_memory()

    # Everything in the home is damaged but the older checkpoint; a killed node left its memory behind.
    leftover = Path("/dev/shm/swarmd-4194304")  # No process has this number.
    leftover.write_bytes(b"left")
    for path in node.home.glob("history.sqlite-*"):
        path.unlink()  # What SQLite would mend the file with.
    (node.home / "history.sqlite").write_bytes(b"no database" * 1000)
    for name in ("status.json", "peers.json"):
        (node.home / "state" / name).write_text("[[{")
    (node.home / "lock").write_text("?")
    newest = sorted((node.home / "checkpoints").glob("checkpoint-*"))[-1]
    os.truncate(newest / "weights.safetensors", 1000)
    (node.home / "run").mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX) as left:
        # Through the folder's descriptor: the whole path may be longer than an address can be.
        folder = os.open(node.home / "run", os.O_PATH)
        left.bind(f"/proc/self/fd/{folder}/control.sock")
        os.close(folder)
    with socket.socket() as taken, Path("/dev/full").open("w") as full:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = subprocess.run(
            [
                *node.command("start"),
                *("--engine", "transformers", "--set", "model.threads=1"),
                *("--listen", f"/ip4/127.0.0.1/tcp/{taken.getsockname()[1]}"),
                *("--join", f"/dns4/no.such.invalid/tcp/1/p2p/{PEER}"),
                *("--rounds", "1"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "the summary cannot be printed" in done.stderr
    assert "set aside" in done.stderr
    assert not leftover.exists()
    problems = " | ".join(node.ask("status")["problems"])
    assert f"{newest.name} is damaged" in problems
    assert "is taken: listening on" in problems
    assert "no.such.invalid does not resolve" in problems
    assert newest.exists()
    assert list(node.home.glob("history.sqlite.*.unreadable"))

    # Now all checkpoints are damaged: the node does not begin anew by itself.
    for path in (node.home / "checkpoints").glob("checkpoint-*/weights.safetensors"):
        os.truncate(path, 1000)
    before = contents(node.home / "checkpoints")
    done = start(node.home, "--isolated", "--engine", "transformers")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("swarmd: no checkpoint in")
    assert "move the folder away to begin anew" in last
    assert contents(node.home / "checkpoints") == before


def test_workers_and_p2pd_that_hang_or_die_cost_neither_start_nor_end(
    make_node: MakeNode, gone: Callable[[list[psutil.Process]], bool]
) -> None:
    node = make_node("home", *LOOPBACK).start()
    p2pd: list[psutil.Process] = []
    while not p2pd:  # It is killed while it starts.
        assert node.process.poll() is None, node.printed()
        p2pd = [child for child in node.children() if child.name() == "p2pd"]
    p2pd[0].kill()
    status = node.wait_for_round(1)
    children = node.children()
    for name in ("trainer", "generator"):
        psutil.Process(status["workers"][name]["pid"]).suspend()
    code, seconds = node.stop()
    assert code == 0
    assert seconds < 15
    assert gone(children)
    assert "no checkpoint at the end: the trainer was not done with it within" in node.printed()
    assert "Traceback" not in node.printed()
    assert f"swarmd-{node.process.pid}" not in shared_memory()
