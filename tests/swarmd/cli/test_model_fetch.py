"""`swarmd model fetch` and `swarmd start`, as processes, against a hub on the loopback address."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import FakeHub
from random_models import make_model_folder

from swarmd.cli.app import run_command_line
from swarmd.models.machine import Machine

NAME = "Qwen/Qwen2.5-0.5B"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[FakeHub]:
    with FakeHub().running() as fake:
        fake.add(NAME, make_model_folder(tmp_path / "made", chat=False))
        yield fake


def run(fake: FakeHub, folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "swarmd", *words],
        env={**os.environ, "HF_HOME": str(folder / "hf"), "HF_ENDPOINT": fake.url, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_known_name_is_fetched_with_progress_and_then_found_offline(
    served: FakeHub, tmp_path: Path
) -> None:
    done = run(served, tmp_path, "model", "fetch", "qwen2.5-0.5b")
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert (folder / "model.safetensors").read_bytes() == served.repositories[NAME]["model.safetensors"]
    assert "model.safetensors: " in done.stderr
    assert "(100%)" in done.stderr

    # Damaged on disk: said, and fetched anew.
    (folder / "config.json").resolve().write_text("{}")
    done = run(served, tmp_path, "model", "fetch", NAME)
    assert (done.returncode, Path(done.stdout.strip())) == (0, folder)
    assert "config.json on this machine is damaged" in done.stderr

    served.asked.clear()
    done = run(served, tmp_path, "model", "list", HF_HUB_OFFLINE="1")
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("qwen2.5-0.5b ")]
    assert "on disk" in line
    assert run(served, tmp_path, "model", "fetch", NAME, HF_HUB_OFFLINE="1").returncode == 0
    assert served.asked == []


def test_a_hub_that_cannot_be_reached_ends_a_start_with_exit_1_and_one_line(
    served: FakeHub, tmp_path: Path
) -> None:
    served.refusal = (403, "GatedRepo")
    words = ("start", "--isolated", "--model", NAME, "--home", str(tmp_path / "home"))
    for done, said in (
        (run(served, tmp_path, *words), "is gated"),
        (run(served, tmp_path, *words, HF_ENDPOINT="http://127.0.0.1:9"), "http://127.0.0.1:9"),
        (run(served, tmp_path, *words, HF_HUB_OFFLINE="1"), "HF_HUB_OFFLINE is set"),
    ):
        (line,) = done.stderr.splitlines()
        assert done.returncode == 1
        assert line.startswith("swarmd: ")
        assert said in line
    assert not (tmp_path / "home").exists()


def test_a_known_model_that_does_not_fit_is_refused_before_it_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    words = ["start", "--isolated", "--model", "qwen2.5-1.5b", "--home", str(tmp_path / "home")]
    for total, free, code in ((8, 6, 2), (900, 6, 1)):
        machine = Machine(total * 10**9, free * 10**9)
        monkeypatch.setattr("swarmd.cli.planning.probe_machine", lambda with_gpus, found=machine: found)
        assert run_command_line(words) == code
        (line,) = capsys.readouterr().err.splitlines()
        assert "qwen2.5-1.5b needs about" in line
        assert "choose a smaller model" in line
    assert run_command_line([*words, "--set", "model.check_memory=false"]) == 1
    assert "HF_HUB_OFFLINE is set" in capsys.readouterr().err


def test_a_base_model_in_a_swarm_that_chats_is_refused_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_model_folder(tmp_path / "base", chat=False)
    assert (
        run_command_line(["start", "--isolated", "--model", str(folder), "--home", str(tmp_path / "h")]) == 2
    )
    assert "has no chat template: choose an instruct model" in capsys.readouterr().err
