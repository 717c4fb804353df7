from pathlib import Path

import pytest

from swarmd.errors import ConfigError
from swarmd.simulate.experiment_file import ExperimentFile, read_experiment_file

TEXT = """
rounds = 7
arms = ["8/0", "4/4:training.external=mask,replay.max_uses=2"]

[network]
delay = [0.0, 1.5]
loss = 0.1

[held_out]
every = 5

[config.training]
learning_rate = 1e-4
gradient_checkpointing = true

[[nodes]]
count = 2
tasks = { bf = 1 }

[[nodes]]
kind = "payload"
speed = 0.5
"""


def test_a_file_says_what_flags_say_and_which_nodes_there_are(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(TEXT)
    file = read_experiment_file(path)
    assert (file.rounds, file.model, file.held_out.every, file.held_out.tasks) == (7, "tiny", 5, 72)
    assert [(node.kind, node.speed, node.tasks) for node in file.node_plans()] == [
        ("honest", 1.0, {"bf": 1.0}),
        ("honest", 1.0, {"bf": 1.0}),
        ("payload", 0.5, {}),
    ]
    assert file.assignments() == ("training.learning_rate=0.0001", "training.gradient_checkpointing=true")
    assert len(ExperimentFile().node_plans()) == 8


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rounds = ", "Invalid value"),
        ("round = 3", "round"),
        ('rounds = "many"', "rounds"),
        ('[[nodes]]\nkind = "evil"', "evil"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        read_experiment_file(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_experiment_file(tmp_path / "none.toml")
