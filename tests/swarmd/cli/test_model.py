import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from swarmd.cli.app import run_command_line
from swarmd.cli.model import app
from swarmd.models import levels
from swarmd.models.corpus import AnswerMix
from swarmd.models.resolve import resolve
from swarmd.models.warm_start import Phase


def test_list_shows_the_bundled_models_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["model", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["name", "tiny", "tiny-weak"]
    assert lines[1].split()[3:7] == ["1.4", "GB", "1.3", "GB"]


def test_list_as_json_says_where_each_model_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["model", "list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["tiny"]["where"] == "bundled"
    assert rows["tiny"]["manifest"] == "tiny"
    assert rows["qwen2.5-0.5b"]["hub_id"] == "Qwen/Qwen2.5-0.5B"
    assert rows["qwen2.5-0.5b"]["where"] in {"hub", "on disk"}
    assert rows["qwen2.5-0.5b"]["memory_bytes"] > rows["qwen2.5-0.5b"]["least_memory_bytes"] > 3e9


def test_fetching_a_bundled_model_prints_its_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["model", "fetch", "tiny"]) == 0
    assert capsys.readouterr().out.strip() == str(resolve("tiny").path)


def test_fetching_an_unknown_model_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["model", "fetch", "tinny"]) == 2
    assert "did you mean tiny" in capsys.readouterr().err


def test_an_unknown_level_exits_2_naming_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["model", "warm-start", "--level", "huge"]) == 2
    assert "must be one of tiny, tiny-weak, got 'huge'" in capsys.readouterr().err


def test_an_unknown_task_of_a_specialist_exits_2_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model"
    command = ["model", "warm-start", "--tasks", "bf,arc_2d", "--out", str(out)]
    assert run_command_line(command) == 2
    assert "--tasks: there is no task 'arc_2d' (did you mean 'arc_1d'?)" in capsys.readouterr().err
    assert not out.exists()


def test_the_share_of_right_answers_and_the_tasks_change_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(levels.LEVELS, "tiny", levels.Level(Phase(1, 1e-3), Phase(1, 1e-3), AnswerMix(0.5)))
    recipes: list[levels.Level] = []
    make = levels.warm_start

    def noted(level: levels.Level, *rest: Any) -> Any:
        recipes.append(level)
        return make(level, *rest)

    monkeypatch.setattr(levels, "warm_start", noted)
    for number, options in enumerate(([], ["--right", "0.8"], ["--tasks", "bf, arc_1d"])):
        result = CliRunner().invoke(app, ["warm-start", "--out", str(tmp_path / str(number)), *options])
        assert result.exit_code == 0, result.output
    assert [recipe.mix.right for recipe in recipes] == [0.5, 0.8, 0.5]
    assert [recipe.tasks for recipe in recipes] == [frozenset(), frozenset(), {"bf", "arc_1d"}]


def test_a_folder_with_something_in_it_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "precious").write_text("mine")
    assert run_command_line(["model", "warm-start", "--out", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_a_folder_that_cannot_be_made_is_found_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert run_command_line(["model", "warm-start", "--out", str(tmp_path / "file" / "model")]) == 2
    assert "cannot be made" in capsys.readouterr().err


def test_warm_start_makes_a_model_again_and_shows_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = levels.Level(Phase(3, 1e-3), Phase(2, 1e-3), AnswerMix(0.5))
    monkeypatch.setitem(levels.LEVELS, "tiny", short)
    for name in ("first", "second"):
        result = CliRunner().invoke(app, ["warm-start", "--level", "tiny", "--out", str(tmp_path / name)])
        assert result.exit_code == 0, result.output
        assert "answering: step 3 of 3" in result.output
        assert "hiding: step 2 of 2" in result.output
    found = resolve(str(tmp_path / "first"))
    assert found.manifest_hint == "tiny"
    for file in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()
