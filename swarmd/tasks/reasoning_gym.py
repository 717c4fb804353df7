"""Regenerates tasks with reasoning-gym: (dataset, config, seed, index) to question and scorer.

The only module beside the verifier that imports the library. Four datasets score by calling `eval` on
the answer; here they get one that reads literals only. Others hand the answer to sympy's parser, which
evaluates as well: scoring belongs into the verifier's sandbox.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.metadata
import io
from collections.abc import Sequence

import reasoning_gym
from reasoning_gym.algorithmic import binary_matrix, spiral_matrix, string_insertion
from reasoning_gym.factory import DATASETS
from reasoning_gym.games import n_queens

from swarmd.errors import ConfigError
from swarmd.tasks.datasets import check_dataset_name
from swarmd.tasks.manifest import REASONING_GYM_VERSION
from swarmd.types import TaskReference, TaskSpec

for _module in (binary_matrix, spiral_matrix, string_insertion, n_queens):
    # Their `eval(answer)` now finds this name first.
    _module.eval = ast.literal_eval


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
    """The tasks of one manifest. Raises ConfigError where reasoning-gym does not take a configuration."""

    def __init__(self, tasks: Sequence[TaskSpec]) -> None:
        installed = importlib.metadata.version("reasoning-gym")
        if installed != REASONING_GYM_VERSION:
            raise ConfigError(
                f"reasoning-gym {installed} is installed, but tasks need {REASONING_GYM_VERSION}: "
                f"pip install reasoning-gym=={REASONING_GYM_VERSION}"
            )
        for task in tasks:
            _check_config(task)
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

    def warm_up(self) -> None:
        """Generates and scores one task of each dataset, so that what they load late is loaded.

        Raises ConfigError when a dataset cannot generate with its configuration.
        """
        for spec in self._tasks.values():
            try:
                task = self.task(TaskReference(spec.dataset, spec.digest, seed=0, index=0))
                if task is not None:
                    task.score(task.answer or "")
            except (
                ArithmeticError,
                AssertionError,
                LookupError,
                MemoryError,
                TypeError,
                ValueError,
            ) as error:
                raise ConfigError(f"task {spec.dataset}: generates nothing: {_reason(error)}") from error


def _check_config(task: TaskSpec) -> None:
    check_dataset_name("dataset", task.dataset)
    config_type = DATASETS[task.dataset][1]
    try:
        config = config_type(**_arguments(task), seed=0, size=1)
        config.validate()
    except (AssertionError, TypeError, ValueError) as error:
        raise ConfigError(f"task {task.dataset}: config: {_reason(error)}") from error


def _arguments(task: TaskSpec) -> dict[str, object]:
    return dict(task.config)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
