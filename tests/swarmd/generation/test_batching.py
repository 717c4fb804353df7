from hypothesis import given
from hypothesis import strategies as st

from swarmd.generation.batching import MemoryCost, Part, plan_batches

COST = MemoryCost(bytes_per_token=10, bytes_per_row=100)


@given(
    prompts=st.lists(st.integers(1, 300), max_size=12),
    group_size=st.integers(1, 9),
    new_tokens=st.integers(1, 50),
    budget=st.integers(0, 40_000),
)
def test_every_completion_is_planned_once_and_within_the_budget(prompts, group_size, new_tokens, budget):
    batches = plan_batches(prompts, group_size, new_tokens, COST, budget)
    places = [
        (part.question, place)
        for batch in batches
        for part in batch
        for place in range(part.first, part.first + part.count)
    ]
    assert sorted(places) == [(q, place) for q in range(len(prompts)) for place in range(group_size)]
    for batch in batches:
        rows = sum(part.count for part in batch)
        longest = max(prompts[part.question] for part in batch)
        assert rows == 1 or rows * COST.of_row(longest + new_tokens) <= budget


def test_everything_shares_one_batch_when_there_is_room():
    batches = plan_batches([5, 30, 7], 2, 10, COST, 1_000_000)
    assert batches == [[Part(1, 0, 2), Part(2, 0, 2), Part(0, 0, 2)]]


def test_similar_lengths_share_a_batch():
    budget = 4 * COST.of_row(110)
    batches = plan_batches([100, 10, 100, 10], 2, 10, COST, budget)
    assert [{part.question for part in batch} for batch in batches] == [{0, 2}, {1, 3}]


def test_group_larger_than_the_budget_is_split():
    batches = plan_batches([10], 5, 10, COST, 2 * COST.of_row(20))
    assert batches == [[Part(0, 0, 2)], [Part(0, 2, 2)], [Part(0, 4, 1)]]
