"""Layering of the configuration sources, and the wording of every kind of mistake."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.config import Config
from swarmd.config_sources import Flag, known_keys, load_config
from swarmd.errors import ConfigError


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_each_source_wins_over_the_one_before(tmp_path: Path) -> None:
    home = written(
        tmp_path / "config.toml", "[node]\nseed = 1\nrounds = 1\nname = 'a'\n[training]\nclip_low = 0.1\n"
    )
    extra = written(tmp_path / "extra.toml", "[node]\nseed = 3\nrounds = 3\n[replay]\nlocal_groups = 6\n")
    loaded = load_config(
        home,
        {"SWARMD_NODE__SEED": "2", "SWARMD_NODE__ROUNDS": "2", "SWARMD_NODE__NAME": "b"},
        extra,
        ["node.seed=4", "replay.local_groups=5", "replay.external_groups=1"],
        {"node.seed": Flag("--seed", 5)},
    )
    assert loaded.config.node.seed == 5
    assert loaded.config.node.rounds == 3
    assert loaded.config.node.name == "b"
    assert loaded.config.training.clip_low == 0.1
    assert loaded.config.replay.local_groups == 5
    sources = {row.key: row.source for row in loaded.settings()}
    assert sources["node.seed"] == "flag --seed"
    assert sources["node.rounds"] == f"file {extra}"
    assert sources["node.name"] == "environment SWARMD_NODE__NAME"
    assert sources["training.clip_low"] == f"file {home}"
    assert sources["replay.local_groups"] == "--set"
    assert sources["training.clip_high"] == "default"


def test_nothing_given_is_the_default_configuration(tmp_path: Path) -> None:
    assert load_config(tmp_path / "missing.toml").config == Config()


def test_settings_list_every_key_once() -> None:
    keys = [row.key for row in load_config().settings()]
    assert tuple(keys) == known_keys()
    assert len(set(keys)) == len(keys)
    assert "training.learning_rate" in keys


@pytest.mark.parametrize(
    ("assignment", "value"),
    [
        ("node.json_logs=yes", True),
        ("node.json_logs=false", False),
        ("training.learning_rate=1e-4", 1e-4),
        ("model.name=  some/folder ", "some/folder"),
        ("swarm.listen=/ip4/127.0.0.1/tcp/0, /ip6/::1/tcp/4", ("/ip4/127.0.0.1/tcp/0", "/ip6/::1/tcp/4")),
        ('swarm.listen=["/ip4/127.0.0.1/tcp/0"]', ("/ip4/127.0.0.1/tcp/0",)),
        ("swarm.listen=", ()),
        ("node.name=", ""),
        ("node.name=a=b", "a=b"),
    ],
)
def test_text_becomes_the_type_of_its_key(assignment: str, value: object) -> None:
    loaded = load_config(assignments=[assignment])
    key = assignment.partition("=")[0]
    assert {row.key: row.value for row in loaded.settings()}[key] == value


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("node.round=3", "unknown key 'node.round'; did you mean 'node.rounds'?"),
        ("trainin.learning_rate=1", "unknown section 'trainin'; did you mean 'training'?"),
        ("node.learning_rate=1", "did you mean 'training.learning_rate'?"),
        ("learning_rate=1", "did you mean 'training.learning_rate'?"),
        ("node.rounds=x", "node.rounds must be a whole number, got 'x' (--set)"),
        ("node.rounds=-1", "node.rounds must be greater than or equal to 0, got -1 (--set)"),
        ("training.learning_rate=fast", "training.learning_rate must be a number, got 'fast'"),
        ("training.learning_rate=inf", "training.learning_rate must be a finite number"),
        ("training.learning_rate=nan", "training.learning_rate must be a finite number"),
        ("node.json_logs=maybe", "node.json_logs must be true or false, got 'maybe'"),
        ("model.dtype=int8", "model.dtype must be 'auto', 'float32', 'bfloat16' or 'float16', got 'int8'"),
        ("swarm.listen=[1]", "swarm.listen must be a text, got [1]"),
        ("swarm.listen=[", "swarm.listen must be a list of texts"),
        ("nonsense", "--set takes section.key=value, got 'nonsense'"),
    ],
)
def test_wrong_assignment_names_the_key_and_what_is_right(assignment: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(assignments=[assignment])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[node]\nrounds = true\n", "node.rounds must be a whole number, got True"),
        ("[node]\nrounds = '3'\n", "node.rounds must be a whole number, got '3'"),
        ("[node]\nname = 3\n", "node.name must be a text, got 3"),
        ("[swarm]\nlisten = '/ip4/0.0.0.0/tcp/1'\n", "swarm.listen must be a list"),
        ("[nodes]\nseed = 1\n", "unknown section 'nodes'; did you mean 'node'?"),
        ("[node]\nsede = 1\n", "unknown key 'node.sede'; did you mean 'node.seed'?"),
        ("rounds = 3\n", "'rounds' stands outside a section; did you mean 'node.rounds'?"),
        ("[node\n", "is not valid TOML"),
        ("[node]\nseed = 1\nseed = 2\n", "is not valid TOML"),
        ("[node.name]\nx = 1\n", "node.name must be a text"),
    ],
)
def test_wrong_file_names_itself_and_the_key(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path / "bad.toml", text)
    with pytest.raises(ConfigError) as caught:
        load_config(config_file=path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


def test_config_file_that_is_not_text_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        load_config(config_file=path)


def test_named_config_file_must_exist_but_the_homes_need_not(tmp_path: Path) -> None:
    load_config(home_file=tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_config(config_file=tmp_path / "missing.toml")


def test_unreadable_home_config_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.toml").mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(home_file=tmp_path / "config.toml")


def test_environment_with_one_underscore_is_not_silently_ignored() -> None:
    with pytest.raises(ConfigError, match="did you mean SWARMD_MODEL__NAME"):
        load_config(environment={"SWARMD_MODEL_NAME": "x"})
    with pytest.raises(ConfigError, match="SWARMD_MODEL__KEY"):
        load_config(environment={"SWARMD_MODEL": "x"})


def test_environment_of_others_is_left_alone() -> None:
    others = {
        "SWARMD_HOME": "/somewhere",
        "SWARMD_SERVICE_HOST": "10.0.0.1",
        "PATH": "/bin",
        "MODEL__NAME": "x",
    }
    assert load_config(environment=others).config == Config()


def test_unknown_environment_key_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"environment SWARMD_MODEL__NAM: .* 'model\.name'"):
        load_config(environment={"SWARMD_MODEL__NAM": "x"})


@given(st.text(max_size=40))
def test_any_assignment_is_taken_or_refused_as_a_config_error(text: str) -> None:
    try:
        load_config(assignments=[text])
    except ConfigError as error:
        refusal = str(error)
    else:
        refusal = "none: it was a right one"
    assert refusal
    assert "\n" not in refusal


@given(
    st.sampled_from(known_keys()), st.text(max_size=20) | st.integers().map(str) | st.floats(0, 1).map(str)
)
def test_any_value_is_taken_or_refused_by_its_key(key: str, text: str) -> None:
    try:
        load_config(assignments=[f"{key}={text}"])
    except ConfigError as error:
        refusal = str(error)
    else:
        refusal = f"none: {key} took it"
    assert key in refusal
