"""The sampler: I own and J external groups, filled with own ones where external ones are few."""

import random
from collections import Counter
from collections.abc import Callable

import pytest

from swarmd.replay.adaptive import ROUNDS_BETWEEN, AdaptiveMix, MixLimits
from swarmd.replay.buffer import ReplayBuffer
from swarmd.replay.pace import Pace
from swarmd.replay.rules import Candidate, Draw
from swarmd.replay.sampler import Sampler
from swarmd.replay.screens import BatchShare
from swarmd.types import RolloutGroup

MakeBuffer = Callable[[int, int], ReplayBuffer]


def empty_buffer(*, now: float = 1000.0, max_policy_lag: int = 4, max_uses: int = 1) -> ReplayBuffer:
    return ReplayBuffer(
        capacity_groups=100,
        capacity_bytes=1_000_000,
        peer_share=1.0,
        max_age_seconds=60.0,
        max_policy_lag=max_policy_lag,
        max_uses=max_uses,
        clock=lambda: now,
    )


@pytest.fixture(scope="session")
def make_buffer(make_group: Callable[..., RolloutGroup]) -> MakeBuffer:
    def make(local: int, external: int) -> ReplayBuffer:
        buffer = empty_buffer()
        for number in range(local):
            buffer.add_local(make_group(number, "self"))
        for number in range(external):
            buffer.add_external(make_group(number, f"peer{number % 3}"))
        return buffer

    return make


def make_sampler(buffer: ReplayBuffer, seed: int = 0, local_groups: int = 4) -> Sampler:
    pace = Pace(local_groups, external_groups=4, max_ahead=24, max_policy_lag=4)
    return Sampler(buffer, pace, random.Random(seed))


def test_a_batch_has_i_own_and_j_external_groups(make_buffer: MakeBuffer) -> None:
    batch = make_sampler(make_buffer(local=6, external=9)).draw(policy_version=0)
    assert batch is not None
    assert (len(batch.groups), batch.external, batch.filled) == (8, 4, 0)
    assert [group.is_local for group in batch.groups] == [True] * 4 + [False] * 4
    assert len({(group.author, group.group_id) for group in batch.groups}) == 8


def test_missing_external_groups_are_filled_with_own_ones_and_counted(make_buffer: MakeBuffer) -> None:
    batch = make_sampler(make_buffer(local=8, external=1)).draw(policy_version=0)
    assert batch is not None
    assert (len(batch.groups), batch.external, batch.filled) == (8, 1, 3)


def test_a_node_alone_trains_on_own_groups_only(make_buffer: MakeBuffer) -> None:
    batch = make_sampler(make_buffer(local=8, external=0)).draw(policy_version=0)
    assert batch is not None
    assert (batch.external, batch.filled) == (0, 4)


def test_nothing_is_taken_while_too_few_groups_are_at_hand(make_buffer: MakeBuffer) -> None:
    buffer = make_buffer(local=4, external=3)
    sampler = make_sampler(buffer)
    assert sampler.missing(policy_version=0) == 1
    assert sampler.draw(policy_version=0) is None
    assert (buffer.stats().local, buffer.stats().external) == (4, 3)


def test_external_groups_never_stand_in_for_own_ones(make_buffer: MakeBuffer) -> None:
    sampler = make_sampler(make_buffer(local=3, external=20))
    assert sampler.missing(policy_version=0) == 1


def test_own_groups_are_used_however_old_they_are(make_buffer: MakeBuffer) -> None:
    sampler = make_sampler(make_buffer(local=8, external=0))
    assert sampler.missing(policy_version=50) == 0
    batch = sampler.draw(policy_version=50)
    assert batch is not None
    assert [group.task.index for group in batch.groups] == list(range(8))


def test_own_groups_that_would_get_too_old_go_before_external_ones(make_buffer: MakeBuffer) -> None:
    # Sampled by version 0, which may lag by 4: the steps at versions 3 and 4 are the last for them.
    batch = make_sampler(make_buffer(local=14, external=9)).draw(policy_version=3)
    assert batch is not None
    assert (batch.external, batch.filled) == (2, 2)
    assert [group.is_local for group in batch.groups] == [True] * 6 + [False] * 2


def test_a_batch_waits_for_groups_in_flight_that_would_get_too_old(make_buffer: MakeBuffer) -> None:
    sampler = make_sampler(make_buffer(local=4, external=9))
    assert sampler.missing(policy_version=4) == 0
    assert sampler.missing(policy_version=4, in_flight=[0, 0]) == 2
    assert sampler.draw(policy_version=4, in_flight=[0, 0]) is None
    assert sampler.missing(policy_version=4, in_flight=[4, 4]) == 0


def test_a_node_that_learns_from_peers_keeps_own_groups_in_reserve_until_they_are_old(
    make_buffer: MakeBuffer,
) -> None:
    buffer = make_buffer(local=4, external=4)
    sampler = make_sampler(buffer, local_groups=0)
    batch = sampler.draw(policy_version=4)
    assert batch is not None
    assert (batch.external, len(buffer.local_versions())) == (4, 4)
    assert sampler.missing(policy_version=4) == 0
    assert sampler.missing(policy_version=5) == 4
    assert buffer.stats().dropped == {"local_stale": 4}


def test_a_drawn_external_group_is_not_drawn_again(make_buffer: MakeBuffer) -> None:
    buffer = make_buffer(local=16, external=8)
    sampler = make_sampler(buffer)
    first, second = sampler.draw(policy_version=0), sampler.draw(policy_version=0)
    assert first is not None
    assert second is not None
    drawn = [(g.author, g.group_id) for g in first.groups + second.groups if not g.is_local]
    assert len(drawn) == len(set(drawn)) == 8


def test_the_draw_over_external_groups_is_uniform(make_buffer: MakeBuffer) -> None:
    counts: Counter[int] = Counter()
    for seed in range(600):
        batch = make_sampler(make_buffer(local=4, external=12), seed).draw(policy_version=0)
        assert batch is not None
        counts.update(group.task.index for group in batch.groups if not group.is_local)
    # 600 draws of 4 out of 12: 200 expected for each, standard deviation 11.5.
    assert set(counts) == set(range(12))
    assert all(140 < count < 260 for count in counts.values())


def test_a_peer_above_its_share_makes_room_for_own_groups(make_group: Callable[..., RolloutGroup]) -> None:
    buffer = empty_buffer()
    for number in range(8):
        buffer.add_local(make_group(number, "self"))
        buffer.add_external(make_group(number, "loud"))
    pace = Pace(4, external_groups=4, max_ahead=24, max_policy_lag=4)
    sampler = Sampler(buffer, pace, random.Random(0), BatchShare("drop", 0.5))
    assert sampler.missing(policy_version=0) == 0
    batch = sampler.draw(policy_version=0)
    assert batch is not None
    assert (batch.external, batch.filled) == (2, 2)
    assert {group.author for group in batch.above_share} == {"loud"}


PACE = Pace(4, external_groups=4, max_ahead=24, max_policy_lag=4)


def newest_task(draw: Draw) -> list[Candidate]:
    """Leaves out all but the one with the highest number."""
    return [max(draw.candidates, key=lambda candidate: candidate.group.task.index)]


def test_a_rule_decides_and_what_it_leaves_out_is_filled_with_own_groups(make_buffer: MakeBuffer) -> None:
    sampler = Sampler(make_buffer(local=7, external=9), PACE, random.Random(0), rule=newest_task)
    assert sampler.missing(policy_version=0) == 0
    batch = sampler.draw(policy_version=0)
    assert batch is not None
    assert (batch.external, batch.filled) == (1, 3)
    assert batch.groups[-1].task.index == 8
    # The second batch has to wait for the rest: six own groups are missing besides the one of a peer.
    assert sampler.missing(policy_version=0) == 7


def test_a_rule_is_not_asked_where_there_is_nothing_to_draw(make_buffer: MakeBuffer) -> None:
    batch = Sampler(make_buffer(local=8, external=0), PACE, random.Random(0), rule=newest_task).draw(0)
    assert batch is not None
    assert (batch.external, batch.filled) == (0, 4)


def test_a_rule_is_told_what_the_node_knows(make_group: Callable[..., RolloutGroup]) -> None:
    seen: list[Draw] = []

    def look(draw: Draw) -> list[Candidate]:
        seen.append(draw)
        return []

    buffer = empty_buffer(now=1010.0, max_uses=3)
    for number in range(8):
        buffer.add_local(make_group(number, "self", rewards=(1.0, 1.0)))
    buffer.add_external(make_group(20, "a", version=5), uses=2)
    buffer.add_external(make_group(21, "a", version=7, received_at=1004.0))
    sampler = Sampler(buffer, PACE, random.Random(0), rule=look, usefulness={"a": 0.25}.get)
    assert sampler.draw(policy_version=0) is not None
    older, newer = seen[0].candidates
    assert (older.age_seconds, older.uses, older.versions_behind) == (10.0, 2, 2)
    assert (newer.age_seconds, newer.uses, newer.versions_behind) == (6.0, 0, 0)
    assert newer.author_usefulness == 0.25
    assert newer.own_success == pytest.approx((16 + 1) / (16 + 2))
    assert seen[0].count == 4
    assert [group.task.index for group in seen[0].own] == [0, 1, 2, 3]


def test_looking_whether_a_batch_is_there_does_not_change_the_draw(make_buffer: MakeBuffer) -> None:
    looked, drawn = (make_sampler(make_buffer(local=4, external=12), seed=5) for _ in range(2))
    for _ in range(3):
        looked.missing(policy_version=0)
    first, second = looked.draw(policy_version=0), drawn.draw(policy_version=0)
    assert first is not None
    assert second is not None
    assert [g.task.index for g in first.groups] == [g.task.index for g in second.groups]


def test_merged_groups_know_each_others_rewards(make_buffer: MakeBuffer) -> None:
    def merge_two(draw: Draw) -> list[Candidate]:
        one, two, three, *_ = draw.candidates
        return [one.merged(draw.own[1]), two.merged(draw.own[1]), three]

    sampler = Sampler(make_buffer(local=8, external=4), PACE, random.Random(0), rule=merge_two)
    batch = sampler.draw(policy_version=0)
    assert batch is not None
    merged = {group.task.index: group.merged_rewards for group in batch.groups if group.is_local}
    assert merged == {0: (), 1: (0.0, 1.0, 0.0, 1.0), 2: (), 3: (), 4: ()}
    external = [group.merged_rewards for group in batch.groups if not group.is_local]
    assert external == [(0.0, 1.0, 0.0, 1.0), (0.0, 1.0, 0.0, 1.0), ()]


def test_i_and_j_follow_the_signal_where_they_are_adaptive(make_group: Callable[..., RolloutGroup]) -> None:
    buffer = empty_buffer(max_policy_lag=100)
    sampler = Sampler(buffer, PACE, random.Random(0), mix=AdaptiveMix(MixLimits(1, 6, 0.05), 4))
    for turn in range(ROUNDS_BETWEEN):
        for number in range(4):
            buffer.add_local(make_group(100 * turn + number, "self", rewards=(0.0, 0.0), version=turn))
            buffer.add_external(make_group(100 * turn + number))
        batch = sampler.draw(policy_version=turn)
        assert batch is not None
        assert batch.external == 4
        sampler.note_round(batch, dropped_share=0.1, evaluations=0, held_out=None)
    assert (sampler.pace.local_groups, sampler.pace.external_groups) == (3, 5)
