import torch
from transformers import DynamicCache

from swarmd.generation.kv_cache import RowCache


def prefilled(prompts: int, length: int) -> DynamicCache:
    cache = DynamicCache()
    for layer in range(2):
        keys = torch.arange(prompts, dtype=torch.float32).reshape(-1, 1, 1, 1) + 10 * layer
        cache.update(keys.expand(prompts, 3, length, 4).clone(), -keys.expand(prompts, 3, length, 4), layer)
    return cache


def test_each_prompt_is_repeated_for_its_completions():
    cache = RowCache(prefilled(2, 5), torch.tensor([3, 1]), 2)
    assert cache.layers[0].keys.shape == (4, 3, 5, 4)
    assert cache.layers[1].keys[:, 0, 0, 0].tolist() == [10, 10, 10, 11]
    assert cache.layers[1].values[:, 0, 0, 0].tolist() == [-10, -10, -10, -11]


def test_new_positions_are_appended_in_place():
    cache = RowCache(prefilled(1, 5), torch.tensor([2]), 2)
    before = cache.layers[0].keys.data_ptr()
    keys, values = cache.update(torch.full((2, 3, 1, 4), 7.0), torch.full((2, 3, 1, 4), 8.0), 0)
    assert keys.shape == values.shape == (2, 3, 6, 4)
    assert keys[0, 0, :, 0].tolist() == [0, 0, 0, 0, 0, 7]
    assert cache.layers[0].keys.data_ptr() == before
    assert cache.get_seq_length() == 6
    assert cache.get_mask_sizes(1, 0) == (7, 0)


def test_finished_row_gives_its_place_to_a_living_one():
    cache = RowCache(prefilled(4, 5), torch.ones(4, dtype=torch.long), 2)
    cache.keep(moved_to=torch.tensor([1]), moved_from=torch.tensor([3]), rows=3)
    for layer in range(2):
        keys, _ = cache.update(torch.zeros(3, 3, 1, 4), torch.zeros(3, 3, 1, 4), layer)
        assert (keys[:, 0, 0, 0] - 10 * layer).tolist() == [0, 3, 2]
