"""How long a worker had something to do."""

from dataclasses import dataclass

import pytest

from swarmd.workers.occupancy import Occupancy


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_counts_while_a_request_is_open() -> None:
    clock = Clock()
    occupancy = Occupancy(clock)
    clock.now += 5
    with occupancy.request():
        clock.now += 2
        assert occupancy.busy_seconds == 2
        clock.now += 1
    clock.now += 10
    assert occupancy.busy_seconds == 3


def test_requests_that_overlap_count_once() -> None:
    clock = Clock()
    occupancy = Occupancy(clock)
    with occupancy.request():
        clock.now += 1
        with occupancy.request():
            clock.now += 1
        clock.now += 1
    assert occupancy.busy_seconds == 3


def test_a_request_that_fails_is_over() -> None:
    clock = Clock()
    occupancy = Occupancy(clock)

    def fail() -> None:
        with occupancy.request():
            clock.now += 1
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    clock.now += 1
    assert occupancy.busy_seconds == 1
