"""Each in a forked child: a hook cannot be taken out again."""

import collections
import os

import pytest
import sympy

from swarmd.rewards.tripwire import OwnText, refuse_evaluation


def what_happens(function, own=OwnText()):  # noqa: B008 - frozen
    """The name of what the function raises after text has been refused, or its result as text."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            refuse_evaluation(own)
            outcome = str(function())
        except BaseException as error:  # noqa: BLE001 - any outcome is reported
            outcome = type(error).__name__
        os.write(write_fd, outcome.encode())
        os._exit(0)
    os.close(write_fd)
    os.waitpid(pid, 0)
    with os.fdopen(read_fd, "rb") as file:
        return file.read().decode()


@pytest.mark.parametrize(
    "function",
    [
        lambda: eval("1 + 1"),  # noqa: S307
        lambda: exec("a = 1"),
        lambda: eval(compile("1", "<answer>", "eval")),  # noqa: S307
        lambda: sympy.sympify("1 + 1"),
        lambda: sympy.parse_expr("1 + 1"),
        lambda: sympy.lambdify([], "1 + 1"),
    ],
)
def test_text_is_not_run(function):
    assert what_happens(function) == "EvaluationRefusedError"


def test_what_is_not_text_runs_as_ever():
    assert what_happens(lambda: __import__("this", level=0).__name__ and 7) == "7"
    assert what_happens(lambda: collections.namedtuple("Point", "x")(3).x) == "3"
    assert what_happens(lambda: compile("1 +", "<answer>", "eval")) == "SyntaxError"


def test_library_that_runs_its_own_text_still_does():
    assert what_happens(lambda: eval("1 + 1"), OwnText((__file__,))) == "2"  # noqa: S307


def test_who_calls_a_tool_counts_in_its_place():
    parser = sympy.parsing.sympy_parser.__file__
    everything_of_sympy = (os.path.dirname(sympy.__file__),)
    tools = frozenset({parser})
    assert what_happens(lambda: sympy.parse_expr("1 + 1"), OwnText(everything_of_sympy)) == "2"
    assert (
        what_happens(lambda: sympy.parse_expr("1 + 1"), OwnText(everything_of_sympy, tools))
        == "EvaluationRefusedError"
    )
    assert what_happens(lambda: sympy.parse_expr("1 + 1"), OwnText((__file__,), tools)) == "2"
