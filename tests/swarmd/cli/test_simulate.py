"""`swarmd simulate` as a user runs it: real processes, broken off and gone on with."""

import functools
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil
import pytest

from swarmd.cli.app import run_command_line
from swarmd.simulate.arms import parse_arms
from swarmd.simulate.experiment import Experiment, Folder
from swarmd.simulate.rows import Row, read_rows
from swarmd.simulate.swarm import simulate

PATIENCE_SECONDS = 240.0
SMALL = ("--nodes", "2", "--rounds", "2", "--set", "rollout.group_size=2", "--eval-tasks", "9")


def arguments(out: Path, *more: str) -> list[str]:
    return ["simulate", "--out", str(out), *SMALL, "--workers", "1", *more]


def command(out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "swarmd", *arguments(out, *more)]


def until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def start(*more: str, out: Path) -> subprocess.Popen[str]:
    # Who tests in the background of a shell may have SIGINT ignored, and that is inherited.
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(command(out, *more), stderr=subprocess.PIPE, text=True, preexec_fn=heed)


def gone(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=PATIENCE_SECONDS)[1]


def labelled(row: Row, arm: str) -> Row:
    return msgspec.structs.replace(row, arm=arm, learning_rate=3e-4, seed=0, wall_seconds=0.0)


def rows(path: Path) -> list[Row]:
    return [msgspec.structs.replace(row, wall_seconds=0.0) for row in read_rows(path)]


@pytest.mark.timeout(900)
def test_a_killed_experiment_goes_on_and_comes_to_the_same(tmp_path: Path) -> None:
    out = tmp_path / "killed"
    first, second = (out / "runs" / f"{arm}-lr0.0003-seed0.parquet" for arm in ("2-0", "1-1"))
    process = start("--arms", "2/0,1/1", out=out)
    # The second run is on its way when the first is done.
    until(first.exists, process)
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    assert family
    assert gone(family)
    assert not second.exists()
    written = first.stat().st_mtime_ns
    done = subprocess.run(command(out, "--arms", "2/0,1/1"), capture_output=True, text=True, check=True)
    assert f"{out / 'summary.json'}: totals of 2 runs" in done.stdout
    assert first.stat().st_mtime_ns == written
    assert "1-1-lr0.0003-seed0: done" in done.stderr
    assert "2-0" not in done.stderr
    # What it comes to alone, and without a kill.
    recorded = Folder(out).recorded()
    assert recorded is not None
    experiment = Experiment(recorded.swarm, recorded.settings, parse_arms("1/1"), (), (0,))
    alone = [row for node in simulate(experiment.runs()[0].swarm) for row in node.rows]
    assert rows(second) == [labelled(row, "1/1") for row in alone]
    summary = msgspec.json.decode((out / "summary.json").read_bytes())
    assert list(summary["arms"]) == ["1/1", "2/0"]


def test_an_interrupted_experiment_says_how_to_go_on_and_leaves_nothing_behind(tmp_path: Path) -> None:
    process = start("--arms", "2/0", "--rounds", "1000", out=tmp_path)
    ours = psutil.Process(process.pid)

    def scores() -> bool:
        """Whether the verifier is up: the run is under way."""
        return any("entrypoints.verifier" in " ".join(p.cmdline()) for p in ours.children(recursive=True))

    until(scores, process)
    family = ours.children(recursive=True)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130
    assert "the same command goes on" in said
    assert "Traceback" not in said
    assert gone(family)
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--arms", "4/4+frosen"], "frosen"),
        (["--arms", "4/4:training.extrenal=mask"], "extrenal"),
        (["--model", "tinny"], "tinny"),
        (["--seeds", "x"], "--seeds"),
        (["--delay", "3-1"], "--delay"),
        (["--learning-rates", "fast"], "--learning-rates"),
        (["--learning-rates", "-1"], "training.learning_rate"),
        (["--set", "replay.sampler=unifrom"], "unifrom"),
        (["--config", "none.toml"], "none.toml"),
        (["--eval-tasks", "9999999"], "9999999"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: list[str], said: str
) -> None:
    out = tmp_path / "x"
    assert run_command_line(arguments(out, *wrong)) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert said in lines[0]
    assert not out.exists()


def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.json").write_text("{}")
    (tmp_path / "file").write_text("")
    assert run_command_line(arguments(tmp_path)) == 2
    assert run_command_line(arguments(tmp_path / "file")) == 2
    of_another, no_folder = capsys.readouterr().err.splitlines()
    assert "plan.json" in of_another
    assert "--out" in no_folder
