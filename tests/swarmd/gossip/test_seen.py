"""What was seen before, by author: bounded, and no author makes us forget another's."""

import random

from swarmd.gossip.seen import VERSIONS_AT_ONCE, PolicyVersions, ReplayWindow, SeenGroups


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_a_group_is_new_once_for_each_author_until_it_is_too_old_to_come_again() -> None:
    clock = Clock()
    seen = SeenGroups(60, clock=clock)
    assert seen.add(b"a", b"1")
    assert not seen.add(b"a", b"1")
    assert seen.add(b"b", b"1")
    clock.now += 61
    assert seen.add(b"a", b"1")
    assert len(seen) == 1


def test_a_flood_of_one_author_makes_nobody_forget_anothers_groups() -> None:
    seen = SeenGroups(3_600, most_groups=1_000)
    honest = [number.to_bytes(2, "big") for number in range(100)]
    for group_id in honest:
        seen.add(b"honest", group_id)
    for number in range(50_000):
        seen.add(b"flooder", number.to_bytes(4, "big"))
    assert len(seen) <= 1_000
    assert not any(seen.add(b"honest", group_id) for group_id in honest)


def test_the_room_is_never_passed_whoever_sends_how_much() -> None:
    rng = random.Random(0)
    seen = SeenGroups(3_600, most_groups=200)
    for number in range(5_000):
        author = bytes([int(rng.paretovariate(0.5)) % 256])
        assert seen.add(author, number.to_bytes(4, "big"))
        assert len(seen) <= 200
        assert len(seen) == sum(map(len, seen._of.values()))


def test_versions_may_rise_as_fast_as_a_trainer_and_start_over() -> None:
    clock = Clock()
    versions = PolicyVersions(clock)
    assert versions.follows(b"a", 5_000_000)
    assert versions.follows(b"a", 5_000_000 + VERSIONS_AT_ONCE)
    assert not versions.follows(b"a", 5_000_000 + 3 * VERSIONS_AT_ONCE)
    assert versions.follows(b"a", 0)
    clock.now += 3_600
    assert versions.follows(b"a", 300_000)
    assert versions.follows(b"b", 2**61)


def test_a_copy_is_told_by_its_number_also_when_messages_overtake_each_other() -> None:
    window = ReplayWindow(600, Clock())
    numbers = [100, 103, 101, 102, 2_000, 1_999]
    for number in numbers:
        assert not window.is_copy("a", number)
        window.note("a", number)
    assert all(window.is_copy("a", number) for number in numbers)
    assert window.is_copy("a", 2_000 - ReplayWindow.WIDTH)
    assert not window.is_copy("a", 1_500)
    assert not window.is_copy("b", 100)


def test_a_publisher_that_was_silent_for_long_may_begin_with_any_number() -> None:
    clock = Clock()
    window = ReplayWindow(600, clock)
    window.note("a", 10**18)
    assert window.is_copy("a", 5)
    clock.now += 601
    assert not window.is_copy("a", 5)
    window.note("a", 5)
    assert window.is_copy("a", 5)
    assert not window.is_copy("a", 6)
