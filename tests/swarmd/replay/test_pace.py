"""The pace: whatever the speeds, own groups are all used, and none too late."""

from collections import deque
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from swarmd.replay.pace import Pace


def test_room_is_left_up_to_max_ahead() -> None:
    pace = Pace(4, 4, max_ahead=20, max_policy_lag=16)
    assert pace.room(0, served_version=0, next_version=0) == 20
    assert pace.room(17, served_version=0, next_version=0) == 3
    assert pace.room(25, served_version=0, next_version=0) == 0


def test_room_is_what_can_be_trained_on_within_the_lag() -> None:
    pace = Pace(4, 4, max_ahead=100, max_policy_lag=2)
    assert pace.room(0, served_version=5, next_version=5) == 24
    assert pace.room(0, served_version=5, next_version=6) == 16
    assert pace.room(3, served_version=5, next_version=7) == 5
    assert pace.room(0, served_version=5, next_version=8) == 0


def test_synchronous_leaves_room_for_one_batch_of_the_newest_policy_only() -> None:
    pace = Pace.synchronous(4, 4)
    assert pace.room(0, served_version=5, next_version=5) == 8
    assert pace.room(8, served_version=5, next_version=5) == 0
    assert pace.room(0, served_version=5, next_version=6) == 0


@given(
    pace=st.builds(
        lambda local, external, extra, lag: Pace(local, external, local + external + extra, lag),
        st.integers(1, 3),
        st.integers(0, 4),
        st.integers(0, 30),
        st.integers(0, 5),
    ),
    choose=st.functions(like=lambda step: None, returns=st.integers(0, 5), pure=True),
)
def test_with_every_speed_of_sampling_training_loading_and_peers_no_group_is_late(
    pace: Pace, choose: Callable[[int], int]
) -> None:
    version = served = 0
    stepping = False
    waiting: deque[int] = deque()
    in_flight: deque[int] = deque()
    for step in range(200):
        action = choose(step)
        if action == 0:
            room = pace.room(len(waiting) + len(in_flight), served, version + stepping)
            in_flight.extend([served] * min(room, 1 + choose(-step)))
        elif action == 1 and in_flight:
            waiting.append(in_flight.popleft())
        elif action == 2:
            served = version
        elif action == 3 and stepping:
            version, stepping = version + 1, False
        elif action == 4 and not stepping:
            due = pace.due([*waiting, *in_flight], version)
            assert due <= pace.batch_groups
            own = max(due, pace.batch_groups - min(choose(-step), pace.external_groups))
            if len(waiting) >= own:
                assert all(version - waiting.popleft() <= pace.max_policy_lag for _ in range(own))
                stepping = True
        assert len(waiting) + len(in_flight) <= pace.max_ahead


def test_alternating_turns_always_go_on() -> None:
    for lag in range(3):
        pace = Pace(2, 2, max_ahead=4, max_policy_lag=lag)
        for version in range(10):
            room = pace.room(0, version, version)
            assert room == pace.batch_groups
            assert pace.due([version] * room, version) <= room
