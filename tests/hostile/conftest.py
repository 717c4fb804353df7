"""Fixtures: a real node as victim, a real honest peer, and an attacker in a process of its own."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile.stage import Attacker, Stage, set_the_stage


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
    with set_the_stage(short_folder, attacker) as made:
        yield made


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
