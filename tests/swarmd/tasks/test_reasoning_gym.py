import pytest
from reasoning_gym.algorithmic import binary_matrix, spiral_matrix, string_insertion
from reasoning_gym.games import n_queens

from swarmd.errors import ConfigError
from swarmd.tasks.manifest import Manifest, task_digest
from swarmd.tasks.reasoning_gym import TaskLibrary
from swarmd.tasks.source import TaskSource
from swarmd.types import TaskReference, TaskSpec


@pytest.mark.parametrize("name", ["tiny", "sapo-nine"])
def test_given_answers_of_the_built_in_tasks_score_full(name):
    manifest = Manifest.load(name)
    library = TaskLibrary(manifest.tasks)
    scores = []
    for reference in TaskSource(manifest, "peer", 0).draw(90):
        task = library.task(reference)
        assert task.question
        scores.append(task.score(task.answer))
    # A few given answers fall short in their own scorer.
    assert sum(scores) / len(scores) > 0.95


def test_propositional_logic_has_no_single_answer_and_still_scores():
    manifest = Manifest.load("tiny")
    library = TaskLibrary(manifest.tasks)
    reference = TaskReference(
        "propositional_logic", manifest.task_digests["propositional_logic"], 5_000_000, 3
    )
    task = library.task(reference)
    assert task.answer is not None
    assert task.score(task.answer) > task.score("nonsense")


def test_same_reference_gives_the_same_question_whatever_else_was_generated():
    manifest = Manifest.load("tiny")
    references = TaskSource(manifest, "peer", 0).draw(20)
    library = TaskLibrary(manifest.tasks)
    forwards = [library.task(reference).question for reference in references]
    backwards = [TaskLibrary(manifest.tasks).task(r).question for r in reversed(references)]
    assert forwards == backwards[::-1]


def test_reference_with_another_digest_is_no_task_of_the_manifest():
    library = TaskLibrary(Manifest.load("tiny").tasks)
    assert library.task(TaskReference("bf", "0" * 64, 1, 0)) is None
    assert library.task(TaskReference("chain_sum", task_digest("chain_sum", {}, "0.1.25"), 1, 0)) is None


@pytest.mark.parametrize(
    ("dataset", "config", "expected"),
    [
        ("bf", {"difficulty": 9}, "task bf: config: difficulty must be less than 4"),
        ("bf", {"hardness": 1}, "task bf: config: .*hardness"),
        ("calendar_arithmetic", {"tasks": ["easter"]}, "task calendar_arithmetic: config: .*easter"),
        ("basic_arithmetic", {"min_terms": "two"}, "task basic_arithmetic: config:"),
        ("nothing", {}, "no dataset 'nothing'"),
    ],
)
def test_configuration_that_the_library_refuses_names_the_dataset(dataset, config, expected):
    with pytest.raises(ConfigError, match=expected):
        TaskLibrary([TaskSpec(dataset, config, 1.0, "digest")]).warm_up(0)


@pytest.mark.parametrize("module", [binary_matrix, spiral_matrix, string_insertion, n_queens])
def test_scorers_that_evaluate_answers_read_literals_only(module):
    assert module.eval("[[0, 1], [1, 0]]") == [[0, 1], [1, 0]]
    with pytest.raises(ValueError, match="malformed"):
        module.eval("__import__('os').getpid()")


def test_binary_matrix_gives_partial_credit_for_a_list_and_runs_no_code(tmp_path):
    manifest = Manifest.load("tiny")
    task = TaskLibrary(manifest.tasks).task(
        TaskReference("binary_matrix", manifest.task_digests["binary_matrix"], 5_000_000, 0)
    )
    as_list = str([[int(cell) for cell in row.split()] for row in task.answer.splitlines()])
    assert task.score(as_list) == 0.1
    mark = tmp_path / "ran"
    assert task.score(f"__import__('pathlib').Path({str(mark)!r}).touch()") == 0.0
    assert not mark.exists()


def test_nothing_is_printed_while_tasks_are_generated_and_scored(capfd):
    manifest = Manifest.load("tiny")
    library = TaskLibrary(manifest.tasks)
    for number in range(len(manifest.tasks)):
        library.warm_up(number)
    for index in range(5):
        library.task(TaskReference("bf", manifest.task_digests["bf"], 5_000_000, index)).score("x")
    assert capfd.readouterr().out == ""
