import json

import pytest

from swarmd.cli.app import run_command_line
from swarmd.tasks.manifest import Manifest


@pytest.fixture
def swarm(capsys, tmp_path, monkeypatch):
    """Runs `swarmd swarm ...` in an empty folder: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        code = run_command_line(["swarm", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_new_writes_a_manifest_that_loads(swarm):
    code, out, _ = swarm("new", "mine", "--task", "bf=2.5", "--task", "chain_sum", "--json")
    assert code == 0
    manifest = Manifest.load("mine.toml")
    assert json.loads(out) == {"file": "mine.toml", "name": "mine", "swarm_id": manifest.swarm_id}
    assert [(task.dataset, task.weight) for task in manifest.tasks] == [("bf", 2.5), ("chain_sum", 1.0)]


def test_new_keeps_what_it_starts_from(swarm):
    assert swarm("new", "mine", "--like", "tiny")[0] == 0
    mine, tiny = Manifest.load("mine.toml"), Manifest.load("tiny")
    assert mine.tasks == tiny.tasks
    assert mine.prompt == tiny.prompt
    assert mine.swarm_id != tiny.swarm_id


def test_new_prints_when_asked_and_writes_nothing(swarm, tmp_path):
    code, out, _ = swarm("new", "mine", "--out", "-")
    assert code == 0
    assert Manifest.from_toml(out).name == "mine"
    assert list(tmp_path.iterdir()) == []


def test_new_overwrites_nothing(swarm, tmp_path):
    (tmp_path / "mine.toml").write_text("precious")
    code, _, err = swarm("new", "mine")
    assert code == 2
    assert "mine.toml exists already" in err
    assert (tmp_path / "mine.toml").read_text() == "precious"


def test_id_is_the_digest_and_the_same_for_a_copy(swarm, tmp_path):
    assert swarm("id", "tiny")[1].strip() == Manifest.load("tiny").swarm_id
    (tmp_path / "copy.toml").write_text(swarm("show", "tiny")[1])
    assert swarm("id", "copy.toml")[1] == swarm("id", "tiny")[1]
    assert json.loads(swarm("id", "tiny", "--json")[1])["swarm_id"] == Manifest.load("tiny").swarm_id


def test_show_without_a_name_lists_the_built_in_manifests(swarm):
    assert {m["name"] for m in json.loads(swarm("show", "--json")[1])} == {"sapo-nine", "tiny"}
    assert "tiny  9 tasks" in swarm("show")[1]


def test_show_gives_every_value_as_json(swarm):
    shown = json.loads(swarm("show", "tiny", "--json")[1])
    assert shown["swarm_id"] == Manifest.load("tiny").swarm_id
    assert shown["prompt"]["suffix"] == "<answer>"
    assert {t["dataset"]: t["config_digest"] for t in shown["tasks"]} == Manifest.load("tiny").task_digests


def test_local_swarm_is_there_but_hidden(swarm):
    assert "--nodes" in swarm("local", "--help")[1]
    assert "local" not in swarm("--help")[1]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["id", "tinny"], "no manifest 'tinny'"),
        (["new", "a/b"], "name must be"),
        (["new", "mine", "--task", "bf=much"], "expected DATASET or DATASET=WEIGHT"),
        (["new", "mine", "--task", "bff"], "no dataset 'bff'"),
        (["new", "mine", "--task", "bf", "--out", "missing/mine.toml"], "cannot be written"),
        (["new", "mine", "--colour", "red"], "--colour"),
        (["id"], "FILE|NAME"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(swarm, tmp_path, arguments, expected):
    code, _, err = swarm(*arguments)
    assert code == 2
    assert expected in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
