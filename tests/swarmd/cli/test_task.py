import io
import json
import subprocess
import sys

import pytest
from reasoning_gym import create_dataset

from swarmd.cli.app import run_command_line
from swarmd.cli.failures import report_failure

ITEM = create_dataset("basic_arithmetic", seed=11, size=4)[3]
ONE = ["--dataset", "basic_arithmetic", "--seed", "11", "--index", "3"]


@pytest.fixture
def swarmd(capsys, monkeypatch):
    """Runs a command line in this process: exit code, standard output, standard error."""

    def run(*arguments, stdin=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = run_command_line(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_task_is_shown_with_question_and_answer(swarmd):
    code, out, _err = swarmd("task", "show", *ONE, "--json")
    assert code == 0
    shown = json.loads(out)
    assert shown["question"] == ITEM["question"]
    assert shown["answer"] == ITEM["answer"]
    assert (shown["dataset"], shown["seed"], shown["index"]) == ("basic_arithmetic", 11, 3)


def test_manifest_decides_how_the_dataset_is_configured(swarmd):
    easy = json.loads(swarmd("task", "show", *ONE, "--swarm", "tiny", "--json")[1])
    assert easy["question"] != ITEM["question"]


@pytest.mark.parametrize(("completion", "score"), [(ITEM["answer"], 1.0), ("none at all", 0.0)])
def test_completion_is_scored(swarmd, completion, score):
    code, out, _err = swarmd("task", "score", *ONE, "--completion", completion, "--json")
    assert code == 0
    assert json.loads(out) == {"score": score, "reason": None}


def test_completion_is_read_from_standard_input(swarmd):
    code, out, _err = swarmd(
        "task", "score", *ONE, "--completion", "-", stdin=b"<answer>%s</answer>\n" % ITEM["answer"].encode()
    )
    assert (code, out) == (0, "1\n")


def test_scoring_happens_in_the_sandbox(swarmd, tmp_path):
    mark = tmp_path / "mark"
    attack = f"open('{mark}', 'w').write('x')"
    code, _out, _err = swarmd(
        "task", "score", "--dataset", "countdown", "--seed", "1", "--index", "0", "--completion", attack
    )
    assert code == 0
    assert not mark.exists()


def test_reason_is_given_when_scoring_takes_too_long(swarmd):
    # Simplifying this takes sympy minutes.
    slow = "+".join(f"sin(x**{n})*cos({n}*x)**{n}*exp(x/{n})" for n in range(2, 40))
    task = ("--dataset", "simple_integration", "--seed", "1", "--index", "0")
    arguments = [*task, "--timeout", "4.0", "--json"]
    _code, out, _err = swarmd("task", "score", *arguments, "--completion", slow)
    assert json.loads(out) == {"score": 0.0, "reason": "timeout"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--dataset", "basic_arithmetc", "--seed", "1", "--index", "0"], "did you mean 'basic_arithmetic'"),
        (
            ["--dataset", "acre", "--seed", "1", "--index", "0", "--swarm", "tiny"],
            "swarm tiny has no task 'acre'",
        ),
        ([*ONE, "--swarm", "nowhere.toml"], "no manifest 'nowhere.toml'"),
        (["--dataset", "bf", "--seed", "-1", "--index", "0"], "--seed"),
        (["--dataset", "bf", "--seed", "1", "--index", "x"], "--index"),
        (["--dataset", "bf", "--seed", "1"], "--index"),
        ([*ONE, "--timeout", "0"], "--timeout"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(swarmd, arguments, expected):
    code, out, err = swarmd("task", "score", *arguments)
    assert code == 2
    assert expected in err
    assert err.count("\n") == 1
    assert out == ""


def test_a_wrong_dataset_is_found_without_loading_the_library():
    code = (
        "import sys\n"
        "from swarmd.cli.app import run_command_line\n"
        "code = run_command_line(['task', 'show', '--dataset', 'x', '--seed', '1', '--index', '0'])\n"
        "assert code == 2\n"
        "assert not {'reasoning_gym', 'torch', 'hivemind', 'transformers'} & set(sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_task_of_a_strangers_manifest_is_generated_in_the_sandbox_and_not_here():
    program = (
        "import sys; from swarmd.cli.app import run_command_line;"
        f"code = run_command_line(['task', 'show', *{ONE!r}, '--swarm', 'tiny']);"
        "sys.exit(code or 'reasoning_gym' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\nanswer: " in done.stdout


def test_nothing_that_a_failure_quotes_moves_a_cursor(capsys):
    report_failure("names '\x1b[31m\x9b2J' as a file\nof weights", 1)
    assert capsys.readouterr().err == "swarmd: names '?[31m?2J' as a file of weights\n"
