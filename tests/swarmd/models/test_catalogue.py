from pathlib import Path

import pytest

from swarmd import models
from swarmd.models.catalogue import CATALOGUE, nearest_names
from swarmd.tasks.manifest import Manifest


def test_every_known_model_is_either_bundled_or_on_the_hub() -> None:
    assert all((model.folder is None) != (model.hub_id is None) for model in CATALOGUE.values())


def test_bundled_models_are_in_the_package() -> None:
    package = Path(next(iter(models.__path__)))
    for model in CATALOGUE.values():
        if model.folder is not None:
            assert (package / model.folder / "model.safetensors").is_file()


def test_every_manifest_named_is_built_in() -> None:
    assert {model.manifest for model in CATALOGUE.values()} <= set(Manifest.built_in_names())


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("tyny", "tiny"),
        ("tiny_weak", "tiny-weak"),
        ("Qwen/Qwen2.5-0.5b", "qwen2.5-0.5b"),
        ("QWEN3-06B", "qwen3-0.6b"),
    ],
)
def test_a_misspelt_name_finds_the_one_that_was_meant(typed: str, meant: str) -> None:
    assert nearest_names(typed)[0] == meant


def test_a_name_like_no_other_finds_none() -> None:
    assert nearest_names("zzzzzz") == ()


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("smollm2-135m", 134_515_008),
        ("smollm2-360m", 361_821_120),
        ("smollm2-1.7b", 1_711_376_384),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-1.5b", 1_543_714_304),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-1.7b", 1_720_574_976),
    ],
)
def test_shapes_are_those_that_were_published(name: str, parameters: int) -> None:
    shape = CATALOGUE[name].shape
    assert shape is not None
    assert shape.parameters == parameters


def test_every_model_on_the_hub_has_a_shape_and_both_variants() -> None:
    on_hub = [model for model in CATALOGUE.values() if model.hub_id is not None]
    assert all(model.shape is not None for model in on_hub)
    descriptions = [model.description for model in on_hub]
    assert descriptions.count("base model") == len(on_hub) / 2
