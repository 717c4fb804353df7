"""The command line from outside: real processes, exit codes, one line for each mistake."""

import subprocess
import sys
from pathlib import Path

import pytest

from swarmd.cli.app import COMMANDS, run_command_line


def swarmd(*arguments: str, home: Path | None = None) -> "subprocess.CompletedProcess[str]":
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(home or "/nonexistent"), "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-m", "swarmd", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )


def test_help_lists_every_command_with_its_line() -> None:
    done = swarmd("--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert command.name in done.stdout
        assert command.help in done.stdout


def test_no_arguments_show_the_help() -> None:
    done = swarmd()
    assert done.returncode == 0
    assert "Usage: swarmd" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["config", "check"], ["start", "--set", "node.sede=1"], ["start", "--model", "tyni"]],
)
def test_nothing_heavy_is_imported_on_the_quick_paths(arguments: list[str], tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from swarmd.cli.app import run_command_line\n"
        "run_command_line(sys.argv[1:])\n"
        "heavy = {'torch', 'hivemind', 'vllm', 'transformers', 'reasoning_gym', 'numpy', 'aiohttp'}\n"
        "print('heavy:', sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        env={"HOME": str(tmp_path)},
        check=False,
    )
    assert done.stdout.splitlines()[-1] == "heavy: []"


def test_help_imports_no_configuration_types() -> None:
    program = (
        "import sys, swarmd.cli.app as a; a.run_command_line(['--help']); print('pydantic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["strat"], "'strat'. Did you mean 'start', 'status'?"),
        (["config", "shwo"], "Did you mean 'show'?"),
        (["start", "--modle", "tiny"], "--model"),
        (["start", "--rounds", "many"], "--rounds"),
        (
            ["start", "--rounds", "-1"],
            "node.rounds must be greater than or equal to 0, got -1 (flag",
        ),
        (["start", "--set", "training.learning_rat=1"], "did you mean 'training.learning_rate'?"),
        (["start", "--set", "training.learning_rate=fast"], "training.learning_rate must be a number"),
        (
            ["start", "--engine", "vlm"],
            "engine must be 'auto', 'vllm' or 'transformers', got 'vlm'",
        ),
        (["start", "--device", "gpu"], "model.device"),
        (["start", "--join", "203.0.113.5"], "swarm.join"),
        (["start", "--listen", "31337"], "swarm.listen"),
        (["start", "--config", "/nonexistent.toml"], "/nonexistent.toml cannot be read"),
        (["start", "--swarm", "sapo-nin"], "sapo-nine"),
        (["start", "--model", "tyni"], "did you mean tiny"),
        (["start", "--isolated", "--join", "/ip4/1.2.3.4/tcp/1"], "--isolated and --join contradict"),
        (["start", "--set", "rollout.group_size=65"], "rollout.group_size must be between 2 and 64"),
        (["config", "check", "--set", "nod.seed=1"], "unknown section 'nod'; did you mean 'node'?"),
        (["logs", "-n", "-1"], "--lines"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("SWARMD_HOME", str(home))
    assert run_command_line(arguments) == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert len(printed.splitlines()) == 1
    assert printed.startswith("swarmd: ")
    assert not home.exists()


def test_exit_code_and_line_reach_the_shell(tmp_path: Path) -> None:
    done = swarmd("start", "--set", "node.sede=1", home=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "swarmd: --set: unknown key 'node.sede'; did you mean 'node.seed'?\n"


def test_group_without_subcommand_shows_its_help() -> None:
    done = swarmd("config")
    assert done.returncode == 2
    assert "Usage: swarmd config" in done.stdout + done.stderr


def test_version_is_printed() -> None:
    import swarmd as package

    assert swarmd("--version").stdout == f"swarmd {package.__version__}\n"


def test_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "node.log"
    log.parent.mkdir()
    log.write_text("a line of the log\n" * 50_000)
    done = subprocess.run(
        f"{sys.executable} -m swarmd logs -n 50000 --home {tmp_path} | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "a line of the log\n"
    assert done.stderr == ""
