"""Regenerates tasks with reasoning-gym: (dataset, config, seed, index) to question and scorer.

The only module beside the verifier that imports the library. Nine datasets score by running the answer
as code: four call `eval`, five hand it to sympy's parser, which evaluates. All nine get a reader
instead. Scoring belongs into the verifier's sandbox all the same.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.metadata
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import reasoning_gym
import sympy
from reasoning_gym.algebra import (
    intermediate_integration,
    polynomial_equations,
    polynomial_multiplication,
    simple_integration,
)
from reasoning_gym.algorithmic import binary_matrix, spiral_matrix, string_insertion
from reasoning_gym.factory import DATASETS
from reasoning_gym.games import countdown, n_queens, puzzle24

from swarmd.errors import ConfigError
from swarmd.tasks.datasets import check_dataset_name
from swarmd.tasks.expressions import read_algebra, read_arithmetic
from swarmd.tasks.manifest import REASONING_GYM_VERSION
from swarmd.types import TaskReference, TaskSpec


class _SympyThatReads:
    """sympy with a parser that does not evaluate."""

    parse_expr = staticmethod(read_algebra)

    def __getattr__(self, name: str) -> Any:
        return getattr(sympy, name)


READERS: Mapping[ModuleType, Mapping[str, object]] = {
    binary_matrix: {"eval": ast.literal_eval},
    n_queens: {"eval": ast.literal_eval},
    spiral_matrix: {"eval": ast.literal_eval},
    string_insertion: {"eval": ast.literal_eval},
    countdown: {"parse_expr": read_arithmetic},
    puzzle24: {"parse_expr": read_arithmetic},
    intermediate_integration: {"sympy": _SympyThatReads()},
    polynomial_multiplication: {"sp": _SympyThatReads()},
    simple_integration: {"sympy": _SympyThatReads()},
}
"""Modules that would evaluate an answer, and the names that they find a reader under."""

ALONE = frozenset(
    {
        "countdown",
        "intermediate_integration",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
    }
)
"""Datasets whose scorers compute with the answer once it is read: their groups share no process."""

_LIBRARY = Path(str(reasoning_gym.__file__)).parent
_SYMPY = Path(str(sympy.__file__)).parent
OWN_TEXT = (
    str(_LIBRARY / "arithmetic/basic_arithmetic.py"),
    str(_LIBRARY / "arithmetic/bitwise_arithmetic.py"),
    str(_LIBRARY / "arithmetic/gsm_symbolic/generators_00_49.py"),
    str(_LIBRARY / "arithmetic/gsm_symbolic/generators_50_99.py"),
    str(_LIBRARY / "code/codeio.py"),
    str(_SYMPY) + "/",
)
"""Source files and folders that run text as code which they wrote themselves, and never an answer."""
EVALUATION_TOOLS = frozenset(
    str(_SYMPY / file) for file in ("core/sympify.py", "parsing/sympy_parser.py", "utilities/lambdify.py")
)
"""Source files that run text for whoever calls them."""


def _solve(equation: Any, variable: str, **options: Any) -> Any:
    """sympy's, which would evaluate the name of the variable."""
    return sympy.solve(equation, sympy.Symbol(variable), **options)


for _module, _names in READERS.items():
    vars(_module).update(_names)
polynomial_equations.solve = _solve


class Task:
    """One regenerated task."""

    def __init__(self, dataset: reasoning_gym.dataset.ProceduralDataset, index: int) -> None:
        self._dataset = dataset
        with contextlib.redirect_stdout(io.StringIO()):  # bf prints while it generates
            self._entry = dataset[index]

    @property
    def question(self) -> str:
        """The question, verbatim."""
        return str(self._entry["question"])

    @property
    def answer(self) -> str | None:
        """A right answer: the dataset's, or the example it gives where there is no single one."""
        answer = self._entry["answer"]
        if answer is None:
            answer = self._entry.get("metadata", {}).get("example_answer")
        return None if answer is None else str(answer)

    def score(self, answer: str) -> float:
        """The dataset's own score of an answer, as it returns it. May raise anything, loop or print."""
        with contextlib.redirect_stdout(io.StringIO()):
            return float(self._dataset.score_answer(answer, self._entry))


class TaskLibrary:
    """The tasks of one manifest."""

    def __init__(self, tasks: Sequence[TaskSpec]) -> None:
        """Raises ConfigError for an unknown dataset, and for another version of reasoning-gym."""
        installed = importlib.metadata.version("reasoning-gym")
        if installed != REASONING_GYM_VERSION:
            raise ConfigError(
                f"reasoning-gym {installed} is installed, but tasks need {REASONING_GYM_VERSION}: "
                f"pip install reasoning-gym=={REASONING_GYM_VERSION}"
            )
        for task in tasks:
            check_dataset_name("dataset", task.dataset)
        self._specs = tuple(tasks)
        self._tasks = {(task.dataset, task.digest): task for task in tasks}

    def task(self, reference: TaskReference) -> Task | None:
        """Regenerates one task. None: not a task of this manifest. May raise what the dataset raises."""
        spec = self._tasks.get((reference.dataset, reference.config_digest))
        if spec is None:
            return None
        dataset = reasoning_gym.create_dataset(
            reference.dataset, **_arguments(spec), seed=reference.seed, size=reference.index + 1
        )
        return Task(dataset, reference.index)

    def warm_up(self, number: int) -> None:
        """Generates and scores one task of a dataset, so that what it loads late is loaded.

        Raises ConfigError when the dataset does not take its configuration, or cannot generate with it.
        """
        spec = self._specs[number]
        _check_config(spec)
        try:
            task = self.task(TaskReference(spec.dataset, spec.digest, seed=0, index=0))
            if task is not None:
                task.score(task.answer or "")
        except (
            ArithmeticError,
            AssertionError,
            LookupError,
            MemoryError,
            OSError,
            TypeError,
            ValueError,
        ) as error:
            raise ConfigError(f"task {spec.dataset}: generates nothing: {_reason(error)}") from error

    def fault(self, number: int) -> str | None:
        """What `warm_up` would raise, or None."""
        try:
            self.warm_up(number)
        except ConfigError as error:
            return str(error)
        return None


def _check_config(task: TaskSpec) -> None:
    config_type = DATASETS[task.dataset][1]
    try:
        config = config_type(**_arguments(task), seed=0, size=1)
        if hasattr(config, "validate"):  # Two have nothing to check.
            config.validate()
    except (AssertionError, TypeError, ValueError) as error:
        raise ConfigError(f"task {task.dataset}: config: {_reason(error)}") from error


def _arguments(task: TaskSpec) -> dict[str, object]:
    return dict(task.config)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
