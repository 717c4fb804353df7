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
