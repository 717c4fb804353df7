"""Fixtures: a real node as victim, a real honest peer, and an attacker in a process of its own."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile.stage import HONEST_HOST, VICTIM_HOST, Attacker, Stage, node, until
from node_process import NodeProcess


@pytest.fixture(scope="module")
def short_folder() -> Iterator[Path]:
    # Unix socket paths are short; pytest's own folders are not.
    path = Path(tempfile.mkdtemp(prefix="sw-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def attacker(short_folder: Path) -> Iterator[Attacker]:
    folder = short_folder / "attacker"
    folder.mkdir()
    attacker = Attacker(folder)
    yield attacker
    attacker.close()


@pytest.fixture(scope="module")
def stage(short_folder: Path, attacker: Attacker) -> Iterator[Stage]:
    """Victim and honest peer, training, and learning from each other."""
    victim = node(short_folder, "victim", VICTIM_HOST).start()
    set_up = Stage(victim, NodeProcess(short_folder / "honest"), attacker)
    try:
        until(lambda: bool(set_up.status().addresses))
        set_up.victim_address = set_up.status().addresses[0]
        set_up.honest = node(short_folder, "honest", HONEST_HOST, "--join", set_up.victim_address).start()
        until(lambda: bool(set_up.status(set_up.honest).addresses))
        set_up.honest_id = set_up.status(set_up.honest).peer_id
        until(lambda: set_up.books().get(set_up.honest_id) is not None)
        set_up.honest_is_heard()
        set_up.memory_before = set_up.memory()
        yield set_up
        for node_process in (set_up.honest, victim):
            assert node_process.stop()[0] == 0, node_process.printed()[-2000:]
            assert "Traceback" not in node_process.printed()
    finally:
        set_up.honest.kill()
        victim.kill()


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
