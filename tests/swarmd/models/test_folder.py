from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2ForCausalLM, Qwen2Tokenizer

from swarmd.errors import SwarmdError
from swarmd.models.architecture import new_model, tiny_config
from swarmd.models.folder import save_model_folder
from swarmd.models.resolve import resolve
from swarmd.models.vocabulary import train_tokenizer

Parts = tuple[Qwen2ForCausalLM, Qwen2Tokenizer]


@pytest.fixture(scope="module")
def parts() -> Parts:
    tokenizer = train_tokenizer(["one two three 1 2 3"] * 5, vocabulary_size=300, context_tokens=512)
    return new_model(tiny_config(len(tokenizer), tokenizer.eos_token_id, "tiny"), seed=0), tokenizer


def test_a_saved_folder_loads_as_float32_with_tied_embeddings(parts: Parts, tmp_path: Path) -> None:
    save_model_folder(tmp_path / "model", *parts)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert isinstance(loaded, Qwen2ForCausalLM)
    assert loaded.dtype == torch.float32
    assert loaded.lm_head.weight.data_ptr() == loaded.model.embed_tokens.weight.data_ptr()
    for name, tensor in parts[0].state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor.to(torch.float16).to(torch.float32))


def test_a_saved_folder_has_its_tokenizer_and_end_token(parts: Parts, tmp_path: Path) -> None:
    save_model_folder(tmp_path / "model", *parts)
    loaded = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert loaded.encode("one 1 2") == parts[1].encode("one 1 2")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert model.config.eos_token_id == model.generation_config.eos_token_id == loaded.eos_token_id


def test_a_saved_folder_resolves_to_the_manifest_it_was_made_for(parts: Parts, tmp_path: Path) -> None:
    save_model_folder(tmp_path / "mine", *parts)
    found = resolve(str(tmp_path / "mine"))
    assert (found.path, found.name, found.manifest_hint) == (tmp_path / "mine", "mine", "tiny")


def test_saving_again_keeps_other_files_and_leaves_nothing_beside(parts: Parts, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_model_folder(folder, *parts)
    (folder / "README.md").write_text("mine")
    save_model_folder(folder, *parts)
    assert (folder / "README.md").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_folder_that_cannot_be_written_is_one_line(parts: Parts, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SwarmdError, match="cannot write the model to"):
        save_model_folder(tmp_path / "file" / "model", *parts)
