import msgspec
import pytest

from swarmd.errors import ConfigError, GenerationError
from swarmd.generation.engines import open_engine
from swarmd.generation.messages import GeneratorSettings, SampleRequest
from swarmd.types import Prompt
from swarmd.weights.shared_memory import WeightReader


@pytest.fixture
def settings(make_model, tokenizer, tmp_path) -> GeneratorSettings:
    make_model().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return GeneratorSettings(
        model_path=str(tmp_path), engine="auto", device="cpu", dtype="auto", threads=1, seed=0
    )


def test_auto_takes_the_transformers_engine_and_loads_the_folder(settings):
    engine = open_engine(settings, WeightReader.attach)
    assert engine.ready.engine == "transformers"
    prompt = Prompt(style="plain", text="<question>1 + 1<answer>")
    reply = engine.sample(SampleRequest((prompt,), 2, 3, 1.0, 0))
    assert len(reply.groups[0].completions_G) == 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dtype_asked_for_is_used(settings, dtype):
    engine = open_engine(msgspec.structs.replace(settings, dtype=dtype), WeightReader.attach)
    assert engine.ready.dtype == dtype


@pytest.mark.parametrize("name", ["vllm", "other"])
def test_engine_that_is_not_there_is_named(settings, name):
    with pytest.raises(ConfigError, match=rf"{name}.*transformers|transformers.*{name}"):
        open_engine(msgspec.structs.replace(settings, engine=name), WeightReader.attach)


def test_folder_without_weights_is_one_clear_line(settings, tmp_path):
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(GenerationError, match="cannot load the model"):
        open_engine(settings, WeightReader.attach)
