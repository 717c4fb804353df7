import json
from pathlib import Path

import pytest
import torch
from random_models import QWEN2_5_HALF_BILLION, make_model_folder, weight_files
from transformers import AutoConfig, AutoModelForCausalLM

from swarmd.errors import ConfigError
from swarmd.models.resolve import resolve
from swarmd.models.shape import read_shape, shape_of


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tied": False},
        {"kind": "qwen3", "head_dim": 32},
        {"kind": "llama", "tied": False, "shards": 3, "begin": True, "pad": False},
    ],
    ids=["qwen2", "untied", "qwen3", "sharded"],
)
def test_the_size_of_a_folder_is_that_of_the_loaded_model(tmp_path: Path, options: dict) -> None:
    folder = make_model_folder(tmp_path / "model", **options)
    model = AutoModelForCausalLM.from_pretrained(folder)
    shape = read_shape(folder)
    assert shape is not None
    assert shape.parameters == model.num_parameters()
    assert shape.is_tied == options.get("tied", True)
    linear = [
        sum(module.weight.shape)
        for module in model.base_model.modules()
        if isinstance(module, torch.nn.Linear)
    ]
    assert shape.layers * shape.linear_numbers_per_layer == sum(linear)
    # The configuration alone gives the same, for models that are not here yet.
    alone = shape_of(json.loads((folder / "config.json").read_text()))
    assert alone == shape


def test_a_tied_model_that_is_stored_twice_is_counted_once(tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "model")
    plain = read_shape(folder)
    make_model_folder(tmp_path / "untied", tied=False)
    (folder / "model.safetensors").write_bytes((tmp_path / "untied" / "model.safetensors").read_bytes())
    assert read_shape(folder) == plain


def test_the_half_billion_shape_has_its_parameters() -> None:
    values = {**QWEN2_5_HALF_BILLION, "model_type": "qwen2", "tie_word_embeddings": True}
    shape = shape_of(values)
    assert shape is not None
    assert shape.parameters == 494_032_768
    assert shape.kv_numbers_per_token * 2 == 12 * 1024


def test_the_bundled_model_is_read_from_its_folder() -> None:
    folder = resolve("tiny").path
    shape, config = read_shape(folder), AutoConfig.from_pretrained(folder)
    assert shape is not None
    assert (shape.vocabulary, shape.hidden) == (config.vocab_size, config.hidden_size)


@pytest.mark.parametrize(
    "change",
    [{"hidden_size": "896"}, {"hidden_size": -1}, {"vocab_size": 2**63}, {"num_hidden_layers": True}],
)
def test_sizes_that_are_none_are_not_computed_with(change: dict) -> None:
    assert shape_of({**QWEN2_5_HALF_BILLION, **change}) is None


def test_an_index_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "model", shards=2)
    index = folder / "model.safetensors.index.json"
    original = index.read_text()
    for name in ("../model.safetensors", "/etc/passwd", "a/b.safetensors", "x.bin", ".hidden.safetensors"):
        index.write_text(original.replace(weight_files(folder)[0], name))
        with pytest.raises(ConfigError, match="none inside the model"):
            read_shape(folder)
        index.write_text(original)
    (folder / weight_files(folder)[1]).unlink()
    with pytest.raises(ConfigError, match=r"lacks 1 of its \d weight files"):
        read_shape(folder)
