import pytest
import torch
from safetensors.torch import load_file, save_file

from swarmd.errors import GenerationError
from swarmd.generation.model import end_token_ids, load_model, memory_cost, replace_weights


def test_loaded_model_has_the_dtype_asked_for(make_model, tmp_path):
    make_model().save_pretrained(tmp_path)
    assert load_model(str(tmp_path), torch.bfloat16).dtype == torch.bfloat16
    assert load_model(str(tmp_path), torch.float32).dtype == torch.float32


def test_folder_that_is_no_model_is_one_clear_line(make_model, tmp_path):
    with pytest.raises(GenerationError, match="cannot load the model") as caught:
        load_model(str(tmp_path), torch.float32)
    assert "\n" not in str(caught.value)


def test_truncated_weights_are_one_clear_line(make_model, tmp_path):
    make_model().save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(GenerationError, match="cannot load the model") as caught:
        load_model(str(tmp_path), torch.float32)
    assert "\n" not in str(caught.value)


def test_missing_tensors_are_named_and_not_filled_with_random_numbers(make_model, tmp_path):
    make_model().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(GenerationError, match=r"lack 1 tensors, such as model\.layers\.1"):
        load_model(str(tmp_path), torch.float32)


def test_pickled_weights_are_not_loaded(make_model, tmp_path):
    model = make_model()
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(GenerationError, match="cannot load the model"):
        load_model(str(tmp_path), torch.float32)


def test_code_in_the_folder_is_not_run(make_model, tmp_path):
    make_model().save_pretrained(tmp_path)
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(
        config.replace('"model_type": "qwen2"', '"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}')
    )
    marker = tmp_path / "ran"
    (tmp_path / "own.py").write_text(f"open({str(marker)!r}, 'w')\nclass Own: pass\n")
    with pytest.raises(GenerationError, match="cannot load the model"):
        load_model(str(tmp_path), torch.float32)
    assert not marker.exists()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("names", ["state", "parameters"])
def test_model_with_replaced_weights_equals_a_fresh_one(make_model, tied, names):
    model, fresh = make_model(tied=tied, seed=1), make_model(tied=tied, seed=2)
    tensors = fresh.state_dict() if names == "state" else dict(fresh.named_parameters())
    replace_weights(model, tensors)
    token_ids = torch.arange(20).unsqueeze(0)
    with torch.no_grad():
        assert torch.equal(model(token_ids).logits, fresh(token_ids).logits)
    assert (model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()) == tied


def test_weights_are_converted_to_the_models_dtype(make_model):
    model, fresh = make_model(seed=1).bfloat16(), make_model(seed=2)
    replace_weights(model, fresh.state_dict())
    assert model.dtype == torch.bfloat16
    assert torch.equal(model.lm_head.weight, fresh.lm_head.weight.bfloat16())


def untied_by_values(tensors):
    return tensors | {"lm_head.weight": tensors["lm_head.weight"] + 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: {**tensors, "more": torch.zeros(1)}, "another model: tensor more"),
        (lambda tensors: {**tensors, "model.norm.weight": torch.zeros(1)}, "model.norm.weight"),
        (lambda tensors: {key: value for key, value in tensors.items() if "norm" not in key}, "missing"),
        (untied_by_values, "not tied: tensor lm_head.weight"),
    ],
)
def test_weights_that_do_not_fit_leave_the_old_ones_whole(make_model, change, message):
    model = make_model(seed=1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(GenerationError, match=message):
        replace_weights(model, change(make_model(seed=2).state_dict()))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_end_tokens_of_tokenizer_and_model_both_count(make_model, tokenizer):
    model = make_model()
    model.generation_config.eos_token_id = [7, 9]
    assert end_token_ids(model, tokenizer) == sorted({7, 9, tokenizer.eos_token_id})
    model.generation_config.eos_token_id = 7
    assert end_token_ids(model, tokenizer) == sorted({7, tokenizer.eos_token_id})
    model.generation_config.eos_token_id = None
    assert end_token_ids(model, tokenizer) == [tokenizer.eos_token_id]


def test_tokenizer_that_ends_beyond_the_vocabulary_is_refused(make_model, tokenizer):
    model = make_model()
    model.config.vocab_size = tokenizer.eos_token_id
    with pytest.raises(GenerationError, match="do not belong together"):
        end_token_ids(model, tokenizer)


def test_memory_cost_counts_keys_and_values_of_all_layers(make_model):
    cost = memory_cost(make_model().config, torch.float32)
    assert cost.bytes_per_token == 2 * 2 * 2 * 8 * 4
    assert cost.bytes_per_row >= 4 * make_model().config.vocab_size
