"""The rules that come with swarmd, each by what it prefers."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import pytest

from swarmd.config import SAMPLER_NAMES
from swarmd.replay.rules import Candidate, Draw, Rule, answer
from swarmd.replay.samplers import MOST_VERSIONS_BEHIND, SAMPLERS, load_rule
from swarmd.types import RolloutGroup

MakeGroup = Callable[..., RolloutGroup]


def first_of(rule: Rule, candidates: Sequence[Candidate], draws: int = 400) -> Counter[int]:
    """How often each candidate, by the number of its task, came first."""
    counts: Counter[int] = Counter()
    for seed in range(draws):
        chosen = answer(rule, Draw(tuple(candidates), 1, (), random.Random(seed)))
        counts[chosen[0].group.task.index] += 1
    return counts


def of_kind(group: RolloutGroup, dataset: str) -> RolloutGroup:
    return msgspec.structs.replace(group, task=msgspec.structs.replace(group.task, dataset=dataset))


def test_the_configuration_knows_the_rules_by_these_names() -> None:
    assert tuple(SAMPLERS) == SAMPLER_NAMES
    assert all(load_rule(name) is SAMPLERS[name] for name in SAMPLER_NAMES)


@pytest.mark.parametrize("name", SAMPLER_NAMES)
def test_a_rule_answers_the_same_draw_alike_and_takes_each_group_once(
    name: str, make_group: MakeGroup
) -> None:
    candidates = tuple(Candidate(make_group(number, f"peer{number % 3}")) for number in range(9))
    own = (make_group(50, "self"),)
    chosen = [
        [c.group for c in answer(SAMPLERS[name], Draw(candidates, 4, own, random.Random(3)))]
        for _ in range(2)
    ]
    assert chosen[0] == chosen[1]
    assert {group.task.index for group in chosen[0]} == set(range(9))


@pytest.mark.parametrize("name", SAMPLER_NAMES)
def test_a_rule_has_an_answer_where_there_is_nothing_to_draw(name: str) -> None:
    assert answer(SAMPLERS[name], Draw((), 4, (), random.Random(0))) == []


def test_uniform_draws_as_it_always_did(make_group: MakeGroup) -> None:
    groups = [make_group(number) for number in range(12)]
    draw = Draw(tuple(map(Candidate, groups)), 4, (), random.Random(7))
    assert [c.group for c in SAMPLERS["uniform"](draw)] == random.Random(7).sample(groups, 12)


def test_advantage_is_in_proportion_to_the_mean_absolute_advantage(make_group: MakeGroup) -> None:
    # 2 sqrt(p (1 - p)): 1 for half right, 0.6 for one right in ten.
    half = Candidate(make_group(0, rewards=(1.0,) * 5 + (0.0,) * 5))
    rare = Candidate(make_group(1, rewards=(1.0,) + (0.0,) * 9))
    assert half.advantage == pytest.approx(1.0)
    assert rare.advantage == pytest.approx(0.6)
    counts = first_of(SAMPLERS["advantage"], [half, rare], draws=2000)
    # Expected 1250 of 2000, standard deviation 22.
    assert 1160 < counts[0] < 1340


def test_advantage_leaves_out_what_is_too_old(make_group: MakeGroup) -> None:
    old = Candidate(make_group(0), versions_behind=MOST_VERSIONS_BEHIND + 1)
    young = Candidate(make_group(1), versions_behind=MOST_VERSIONS_BEHIND)
    chosen = answer(SAMPLERS["advantage"], Draw((old, young), 2, (), random.Random(0)))
    assert chosen == [young]


def test_learnable_prefers_what_is_right_half_of_the_time(make_group: MakeGroup) -> None:
    successes = (0.02, 0.5, 0.98)
    candidates = [Candidate(make_group(i), own_success=p) for i, p in enumerate(successes)]
    counts = first_of(SAMPLERS["learnable"], candidates)
    # Weights 0.0196, 0.25, 0.0196: 86 % expected.
    assert counts[1] > 310


def test_fresh_takes_the_newest_and_chooses_by_chance_among_equals(make_group: MakeGroup) -> None:
    ages = (5.0, 1.0, 3.0, 1.0)
    candidates = [Candidate(make_group(i), age_seconds=age) for i, age in enumerate(ages)]
    chosen = answer(SAMPLERS["fresh"], Draw(tuple(candidates), 4, (), random.Random(0)))
    assert [c.age_seconds for c in chosen] == sorted(ages)
    counts = first_of(SAMPLERS["fresh"], candidates)
    assert set(counts) == {1, 3}
    assert 140 < counts[1] < 260


def test_mixed_takes_what_it_can_merge_first_and_spreads_it_over_the_own_groups(
    make_group: MakeGroup,
) -> None:
    own = tuple(of_kind(make_group(90 + i, "self"), name) for i, name in enumerate("aab"))
    candidates = tuple(Candidate(of_kind(make_group(i), "aabbzz"[i])) for i in range(6))
    chosen = answer(SAMPLERS["mixed"], Draw(candidates, 4, own, random.Random(1)))
    assert [c.merged_with is not None for c in chosen] == [True] * 4 + [False] * 2
    merged = Counter(c.merged_with.group_id for c in chosen if c.merged_with is not None)
    assert merged == {own[0].group_id: 1, own[1].group_id: 1, own[2].group_id: 2}
    for candidate in chosen[:4]:
        assert candidate.merged_with is not None
        assert candidate.merged_with.task.dataset == candidate.group.task.dataset


def test_the_same_dataset_with_another_difficulty_is_another_kind(make_group: MakeGroup) -> None:
    own = make_group(0, "self")
    harder = msgspec.structs.replace(
        make_group(1), task=msgspec.structs.replace(own.task, config_digest="harder")
    )
    (chosen,) = answer(SAMPLERS["mixed"], Draw((Candidate(harder),), 1, (own,), random.Random(0)))
    assert chosen.merged_with is None


def test_reputation_prefers_authors_whose_groups_could_teach(make_group: MakeGroup) -> None:
    useful = Candidate(make_group(0, "a"), author_usefulness=0.9)
    idle = Candidate(make_group(1, "b"), author_usefulness=0.1)
    assert 330 < first_of(SAMPLERS["reputation"], [useful, idle])[0] < 390
    # One that nothing is known of counts as useful half of the time.
    unknown = replace(useful, author_usefulness=None)
    assert 300 < first_of(SAMPLERS["reputation"], [unknown, idle])[0] < 365
