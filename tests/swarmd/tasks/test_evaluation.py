"""Which datasets evaluate answers, found anew in whatever version of the library is installed."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
import reasoning_gym
from reasoning_gym.factory import DATASETS

from swarmd.tasks.reasoning_gym import ALONE, OWN_TEXT, READERS

LIBRARY = Path(reasoning_gym.__file__).parent
RUNS_TEXT = {"eval", "exec", "compile", "parse_expr", "sympify", "lambdify", "nsimplify", "__import__"}
"""Calls by which text becomes code, in Python and in sympy."""
OUTWARD = {
    "subprocess",
    "pickle",
    "marshal",
    "shelve",
    "socket",
    "ctypes",
    "multiprocessing",
    "urllib",
    "http",
}
NEVER_REACHED = {
    # eval of the library's own answer, for the case that it is not JSON: it always is.
    "algorithmic/number_sorting.py",
}


def scanned_modules():
    for path in sorted(LIBRARY.rglob("*.py")):
        name = path.relative_to(LIBRARY).as_posix()
        # Neither is imported: tools of the library's authors, and programs of third parties.
        if not name.startswith("coaching/"):
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def called_name(node):
    match node:
        case ast.Call(func=ast.Name(id=name)):
            return name
        case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=name)) if owner in ("sp", "sympy"):
            return name
    return None


def defines(tree, name):
    return any(isinstance(node, ast.FunctionDef) and node.name == name for node in ast.walk(tree))


@pytest.fixture(scope="module")
def evaluating():
    """Dataset to what its scorer does with an answer that it should not."""
    program = Path(__file__).with_name("evaluation_scan.py")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=240, check=True)
    return json.loads(done.stdout)


def test_every_dataset_that_runs_an_answer_as_code_has_a_reader_instead(evaluating):
    by_module = {DATASETS[name][0].__module__: name for name in evaluating}
    assert set(by_module) == {module.__name__ for module in READERS}
    assert {event for events in evaluating.values() for event in events} == {"exec"}


def test_datasets_that_compute_with_the_answer_share_no_process(evaluating):
    literals = {module.__name__ for module, names in READERS.items() if "eval" in names}
    assert {name for name in evaluating if DATASETS[name][0].__module__ not in literals} == ALONE


def test_every_place_of_the_library_that_makes_code_of_text_is_known():
    places = {
        name
        for name, tree in scanned_modules()
        if any(
            called_name(node) in RUNS_TEXT and not defines(tree, called_name(node)) for node in ast.walk(tree)
        )
    }
    readers = {Path(module.__file__).relative_to(LIBRARY).as_posix() for module in READERS}
    own = {
        Path(path).relative_to(LIBRARY).as_posix() for path in OWN_TEXT if Path(path).is_relative_to(LIBRARY)
    }
    assert places == readers | own | NEVER_REACHED


def test_no_module_of_the_library_starts_programs_unpickles_or_opens_connections():
    imports = {
        (name, alias.name.split(".")[0])
        for name, tree in scanned_modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in (node.names if isinstance(node, ast.Import) else [ast.alias(node.module or "")])
    }
    assert {pair for pair in imports if pair[1] in OUTWARD} == set()
