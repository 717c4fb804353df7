import json
import shutil

import pytest

from swarmd.errors import ConfigError
from swarmd.models.catalogue import CATALOGUE
from swarmd.models.folder_check import check_folder
from swarmd.models.resolve import resolve


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(resolve("tiny").path, tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("name", [name for name, model in CATALOGUE.items() if model.folder is not None])
def test_bundled_models_pass(name):
    check_folder(resolve(name).path)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "\x00", "[" * 100_000])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "generation_config.json"])
def test_json_that_is_none_or_no_object_is_named(folder, name, text):
    (folder / name).write_text(text)
    with pytest.raises(ConfigError, match=name):
        check_folder(folder)


def header(value):
    text = json.dumps(value).encode()
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        b"\xff" * 64,
        header([]),
        header({"w": 3}),
        header({"w": {"data_offsets": []}}),
        header({"w": {"data_offsets": ["0", "4"]}}),
        header({"w": {"data_offsets": [0, 4]}}) + b"abc",
        header({"w": {"data_offsets": [0, 4]}}) + b"abcde",
        b"PK\x03\x04" + bytes(100),
    ],
)
def test_weights_that_are_torn_or_foreign_are_named(folder, data):
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(ConfigError, match=r"model\.safetensors"):
        check_folder(folder)
