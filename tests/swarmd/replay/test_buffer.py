"""The replay buffer: its bounds, its quotas, and what it lets the sampler draw."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.replay.buffer import Drop, ReplayBuffer, SavedGroup
from swarmd.types import RolloutGroup

MakeGroup = Callable[..., RolloutGroup]


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def make_buffer(clock: Clock | None = None, **changes: object) -> ReplayBuffer:
    settings: dict[str, object] = {
        "capacity_groups": 10,
        "capacity_bytes": 100_000,
        "peer_share": 0.5,
        "max_age_seconds": 60.0,
        "max_policy_lag": 4,
        "max_uses": 1,
        "clock": clock or Clock(),
    }
    return ReplayBuffer(**(settings | changes))  # type: ignore[arg-type]


def test_an_informative_group_is_kept_and_can_be_drawn(make_group: MakeGroup) -> None:
    buffer = make_buffer()
    group = make_group(1)
    assert buffer.add_external(group) is None
    assert buffer.drawable() == [group]


def test_a_group_without_reward_differences_does_not_enter(make_group: MakeGroup) -> None:
    buffer = make_buffer()
    assert buffer.add_external(make_group(1, rewards=(1.0, 1.0))) is Drop.NO_SIGNAL
    assert buffer.stats().external == 0
    assert buffer.stats().dropped == {"no_signal": 1}


def test_the_same_group_enters_once(make_group: MakeGroup) -> None:
    buffer = make_buffer()
    buffer.add_external(make_group(1))
    assert buffer.add_external(make_group(1)) is Drop.DUPLICATE
    assert buffer.stats().external == 1


def test_a_used_up_group_does_not_come_back_when_it_is_sent_again(make_group: MakeGroup) -> None:
    buffer = make_buffer()
    group = make_group(1)
    buffer.add_external(group)
    buffer.mark_drawn(group)
    assert buffer.add_external(group) is Drop.DUPLICATE


def test_content_copied_under_another_name_is_a_duplicate(make_group: MakeGroup) -> None:
    buffer = make_buffer()
    original = make_group(1, "honest")
    copied = msgspec.structs.replace(original, author="thief")
    buffer.add_external(original)
    assert buffer.add_external(copied) is Drop.DUPLICATE


def test_a_reused_group_id_with_other_content_is_refused_and_bytes_stay_right(make_group: MakeGroup) -> None:
    buffer = make_buffer()
    buffer.add_external(make_group(1))
    reused = msgspec.structs.replace(make_group(2), group_id=f"{1:032x}")
    assert buffer.add_external(reused) is Drop.DUPLICATE
    assert buffer.stats().bytes == 100


def test_a_peer_over_its_quota_loses_its_own_oldest_group(make_group: MakeGroup) -> None:
    buffer = make_buffer()
    buffer.add_external(make_group(1, "quiet"))
    for number in range(2, 9):
        buffer.add_external(make_group(number, "flooder"))
    assert buffer.stats().by_author == {"quiet": 1, "flooder": 5}
    numbers = [group.task.index for group in buffer.drawable() if group.author == "flooder"]
    assert numbers == [4, 5, 6, 7, 8]
    assert buffer.stats().dropped == {"quota": 2}


def test_a_peer_over_its_quota_in_bytes_loses_its_own_oldest_group(make_group: MakeGroup) -> None:
    buffer = make_buffer(capacity_bytes=1000)
    for number in range(3):
        buffer.add_external(make_group(number, size_bytes=200))
    assert [group.task.index for group in buffer.drawable()] == [1, 2]


def test_a_newcomer_has_a_part_of_a_share(make_group: MakeGroup) -> None:
    buffer = make_buffer(capacity_groups=20)
    for number in range(9):
        buffer.add_external(make_group(number, author="new"), {"new": 0.2})
    assert [group.group_id for group in buffer.drawable()] == [
        make_group(number).group_id for number in (7, 8)
    ]
    assert buffer.stats().dropped == {"quota": 7}


def test_neighbours_share_a_quota_and_the_one_with_most_gives_way(make_group: MakeGroup) -> None:
    buffer = make_buffer(capacity_groups=20, peer_share=0.25)
    for number in range(3):
        buffer.add_external(make_group(number, author="a"), {"a": 1.0, "place": 1.0})
    for number in range(3, 9):
        buffer.add_external(make_group(number, author="b"), {"b": 1.0, "place": 1.0})
    buffer.add_external(make_group(9, author="elsewhere"), {"elsewhere": 1.0})
    assert buffer.stats().by_author == {"a": 2, "b": 3, "elsewhere": 1}


def test_a_full_buffer_takes_room_from_the_peer_that_holds_most(make_group: MakeGroup) -> None:
    buffer = make_buffer(capacity_groups=6)
    for number in range(3):
        buffer.add_external(make_group(number, "large", size_bytes=300))
    for number in range(3, 6):
        buffer.add_external(make_group(number, "small", size_bytes=50))
    buffer.add_external(make_group(6, "new"))
    assert buffer.stats().by_author == {"large": 2, "small": 3, "new": 1}
    assert buffer.stats().dropped == {"capacity": 1}


def test_a_group_larger_than_a_peers_share_is_refused(make_group: MakeGroup) -> None:
    buffer = make_buffer(capacity_bytes=1000)
    assert buffer.add_external(make_group(1, size_bytes=501)) is Drop.TOO_LARGE


def test_an_old_group_is_neither_drawn_nor_kept(make_group: MakeGroup) -> None:
    clock = Clock()
    buffer = make_buffer(clock)
    buffer.add_external(make_group(1))
    clock.now += 61
    assert buffer.drawable() == []
    assert buffer.stats().external == 0
    assert buffer.stats().dropped == {"stale": 1}


def test_a_group_that_arrives_too_old_does_not_enter(make_group: MakeGroup) -> None:
    assert make_buffer().add_external(make_group(1, received_at=939.0)) is Drop.STALE


def test_a_group_far_behind_its_authors_newest_is_not_drawn(make_group: MakeGroup) -> None:
    buffer = make_buffer()
    buffer.add_external(make_group(1, "a", version=0))
    buffer.add_external(make_group(2, "a", version=5))
    buffer.add_external(make_group(3, "b", version=0))
    assert {group.task.index for group in buffer.drawable()} == {2, 3}


def test_a_group_may_be_drawn_as_often_as_configured(make_group: MakeGroup) -> None:
    buffer = make_buffer(max_uses=2)
    group = make_group(1)
    buffer.add_external(group)
    buffer.mark_drawn(group)
    assert buffer.drawable() == [group]
    buffer.mark_drawn(group)
    assert buffer.drawable() == []


def test_own_groups_are_taken_oldest_first_and_once(make_group: MakeGroup) -> None:
    buffer = make_buffer()
    for number in range(3):
        buffer.add_local(make_group(number, "self"))
    assert [group.task.index for group in buffer.take_local(2)] == [0, 1]
    assert buffer.local_versions() == (0,)


def test_own_groups_are_never_dropped_for_age_or_for_room(make_group: MakeGroup) -> None:
    clock = Clock()
    buffer = make_buffer(clock, capacity_bytes=250)
    buffer.add_external(make_group(9))
    for number in range(5):
        buffer.add_local(make_group(number, "self"))
    clock.now += 1_000_000
    assert (buffer.stats().local, buffer.stats().external) == (5, 0)
    assert [group.task.index for group in buffer.take_local(9)] == [0, 1, 2, 3, 4]


def test_a_saved_buffer_goes_on_with_its_groups_ages_and_uses(make_group: MakeGroup) -> None:
    before = make_buffer(Clock(1000.0), max_uses=2)
    own, fresh, used = make_group(1, "self"), make_group(2, "a"), make_group(3, "b", received_at=995.0)
    before.add_local(own)
    assert before.add_external(used) is None
    assert before.add_external(fresh) is None
    before.mark_drawn(used)
    saved = msgspec.msgpack.decode(msgspec.msgpack.encode(before.saved(100_000)), type=tuple[SavedGroup, ...])
    # The next run: another monotonic clock, and 50 seconds have passed.
    after = make_buffer(Clock(20.0), max_uses=2)
    after.restore(saved, 50.0)
    (taken,) = after.take_local(1)
    assert taken == msgspec.structs.replace(own, received_at=-30.0)
    assert {group.group_id: group.received_at for group in after.drawable()} == {
        fresh.group_id: -30.0,
        used.group_id: -35.0,
    }
    after.mark_drawn(next(group for group in after.drawable() if group.author == "b"))
    assert [group.author for group in after.drawable()] == ["a"]
    assert after.add_external(msgspec.structs.replace(fresh, received_at=20.0)) is Drop.DUPLICATE


def test_what_grew_too_old_between_two_runs_does_not_come_back(make_group: MakeGroup) -> None:
    before = make_buffer()
    before.add_local(make_group(1, "self"))
    before.add_external(make_group(2, "a"))
    after = make_buffer()
    after.restore(before.saved(100_000), 61.0)
    assert (after.stats().local, after.stats().external) == (1, 0)
    assert after.stats().dropped == {"stale": 1}


def test_a_saved_buffer_is_bounded_and_own_groups_come_first(make_group: MakeGroup) -> None:
    buffer = make_buffer()
    for number in range(4):
        buffer.add_external(make_group(number, "a", received_at=990.0 + number))
    buffer.add_local(make_group(9, "self", received_at=980.0))
    saved = [entry.group.group_id for entry in buffer.saved(300)]
    assert saved == [make_group(number).group_id for number in (9, 2, 3)]


def test_own_groups_of_an_old_policy_are_forgotten_on_request_and_counted(make_group: MakeGroup) -> None:
    buffer = make_buffer()
    buffer.add_local(make_group(1, "self", version=0))
    buffer.add_local(make_group(2, "self", version=1))
    buffer.forget_local(before_version=1)
    assert buffer.local_versions() == (1,)
    assert buffer.stats().dropped == {"local_stale": 1}
    assert buffer.stats().bytes == 100


@pytest.mark.parametrize("capacity_bytes", [150, 1000])
@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, 40), st.sampled_from("abc"), st.integers(1, 400), st.booleans(), st.floats(0, 9)
        ),
        max_size=60,
    )
)
def test_whatever_arrives_the_bounds_hold_and_the_bytes_add_up(
    make_group: MakeGroup, capacity_bytes: int, steps: list[tuple[int, str, int, bool, float]]
) -> None:
    clock = Clock()
    buffer = make_buffer(clock, capacity_groups=6, capacity_bytes=capacity_bytes, max_age_seconds=20.0)
    for number, author, size_bytes, is_local, seconds in steps:
        clock.now += seconds
        group = make_group(
            number, "self" if is_local else author, size_bytes=size_bytes, received_at=clock.now
        )
        if is_local:
            buffer.add_local(group)
        else:
            buffer.add_external(group)
        stats = buffer.stats()
        assert stats.external <= 6
        assert max(stats.by_author.values(), default=0) <= 3
        assert stats.bytes <= capacity_bytes or stats.external == 0
    while buffer.take_local(1):
        pass
    clock.now += 1000
    assert buffer.stats().bytes == buffer.stats().external == 0
