"""Fixtures: a real node as victim, a real honest peer, and an attacker in a process of its own."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile.stage import Attacker, Stage, set_the_stage

WAYS_TO_ANSWER = ("huge", "endless", "silent", "crowd")
"""What the hostile bootstrap peers do when they are asked for groups to catch up on."""


@pytest.fixture(scope="session")
def short_folder() -> Iterator[Path]:
    # Unix socket paths are short; pytest's own folders are not.
    path = Path(tempfile.mkdtemp(prefix="sw-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def attacker(short_folder: Path) -> Iterator[Attacker]:
    folder = short_folder / "attacker"
    folder.mkdir()
    attacker = Attacker(folder)
    yield attacker
    attacker.close()


@pytest.fixture(scope="session")
def stage(short_folder: Path, attacker: Attacker) -> Iterator[Stage]:
    """The victim joins at four hostile peers, the honest one at the victim."""
    join: list[str] = []
    for how in WAYS_TO_ANSWER:
        (address, *_) = attacker.appear(how)["addresses"]
        attacker.do("serve_catch_up", who=how, how=how)
        join += ["--join", address]
    with set_the_stage(short_folder, attacker, *join) as made:
        yield made


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
