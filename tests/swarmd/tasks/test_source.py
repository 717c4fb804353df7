from collections import Counter
from itertools import pairwise

import pytest

from swarmd.errors import ConfigError
from swarmd.tasks.manifest import Manifest
from swarmd.tasks.source import TaskSource, held_out_tasks, is_held_out

TINY = Manifest.load("tiny")
WEIGHTED = Manifest.from_toml(
    'name = "w"\n[[tasks]]\ndataset = "bf"\nweight = 3\n[[tasks]]\ndataset = "arc_1d"\nweight = 1\n'
)


def test_same_node_and_seed_give_the_same_stream():
    assert TaskSource(TINY, "peer", 0).draw(50) == TaskSource(TINY, "peer", 0).draw(50)


def test_stream_goes_on_where_it_was_after_a_restart():
    source = TaskSource(TINY, "peer", 0)
    first = source.draw(7)
    again = TaskSource(TINY, "peer", 0, source.position)
    assert first + again.draw(13) == TaskSource(TINY, "peer", 0).draw(20)


def test_how_many_are_drawn_at_once_does_not_matter():
    one_by_one = TaskSource(TINY, "peer", 0)
    assert tuple(one_by_one.draw(1)[0] for _ in range(9)) == TaskSource(TINY, "peer", 0).draw(9)


def test_streams_of_other_nodes_and_seeds_are_far_away():
    streams = [TaskSource(TINY, f"peer{i}", seed).draw(1)[0].seed for i in range(20) for seed in range(5)]
    ordered = sorted(streams)
    assert min(b - a for a, b in pairwise(ordered)) > 2**40


def test_references_fit_a_signed_64_bit_integer_and_carry_the_manifests_digests():
    for reference in TaskSource(TINY, "peer", 0, position=2**40 - 100).draw(100):
        assert 0 <= reference.seed + reference.index < 2**63
        assert TINY.task_digests[reference.dataset] == reference.config_digest


def test_weights_set_the_shares_of_the_datasets():
    counts = Counter(reference.dataset for reference in TaskSource(WEIGHTED, "peer", 0).draw(4000))
    assert 0.72 < counts["bf"] / 4000 < 0.78


def test_each_node_draws_its_datasets_in_another_order():
    orders = {tuple(r.dataset for r in TaskSource(TINY, f"peer{i}", 0).draw(20)) for i in range(5)}
    assert len(orders) == 5


def test_stream_never_enters_the_held_out_range():
    # Nearly everything is held out, so a careless seed would land in it.
    crowded = Manifest.from_toml(TINY.to_toml().replace("[0, 1048576]", f"[{2**61}, {2**61 + 2**32}]"))
    for i in range(50):
        reference = TaskSource(crowded, f"peer{i}", 0, position=2**40 - 1).draw(1)[0]
        assert not is_held_out(reference, crowded)


def test_held_out_tasks_are_balanced_distinct_and_in_the_range():
    tasks = held_out_tasks(TINY, 32)
    assert set(Counter(task.dataset for task in tasks).values()) == {3, 4}
    assert len({task.seed + task.index for task in tasks}) == 32
    assert all(is_held_out(task, TINY) for task in tasks)
    assert held_out_tasks(TINY, 8) == tasks[:8]


def test_held_out_is_judged_by_seed_plus_index():
    start, stop = TINY.held_out
    [task] = held_out_tasks(TINY, 1)
    below = type(task)(task.dataset, task.config_digest, seed=stop - 5, index=4)
    above = type(task)(task.dataset, task.config_digest, seed=stop - 5, index=5)
    assert start == 0
    assert is_held_out(below, TINY)
    assert not is_held_out(above, TINY)


def test_more_held_out_tasks_than_there_are_is_an_error():
    narrow = Manifest.from_toml(TINY.to_toml().replace("[0, 1048576]", "[0, 4]"))
    with pytest.raises(ConfigError, match="holds out only 4"):
        held_out_tasks(narrow, 5)
