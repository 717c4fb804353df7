import torch

from swarmd.models.architecture import new_model, tiny_config


def test_the_model_has_about_a_million_parameters_and_tied_embeddings() -> None:
    model = new_model(tiny_config(960, 0, "tiny"), seed=0)
    assert 800_000 < model.num_parameters() < 1_000_000
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_the_seed_decides_the_first_weights_and_nothing_else() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = new_model(tiny_config(300, 0, "tiny"), seed=1).model.embed_tokens.weight
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, new_model(tiny_config(300, 0, "tiny"), seed=1).model.embed_tokens.weight)
    assert not torch.equal(first, new_model(tiny_config(300, 0, "tiny"), seed=2).model.embed_tokens.weight)
