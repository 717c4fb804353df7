"""Numbers of trainer and generator against each other, and when a comparison is due."""

import math

import pytest

from swarmd.loops.canary import TOLERANCES, Canary, difference

EXPECTED = (-1.0, -2.0, -3.0, -4.0)


def test_in_float32_the_largest_difference_counts_and_in_16_bits_the_mean() -> None:
    found = (-1.0, -2.1, -3.0, -3.7)
    assert difference(EXPECTED, found, "float32") == pytest.approx(0.3)
    assert difference(EXPECTED, found, "bfloat16") == pytest.approx(0.1)
    assert difference(EXPECTED, found, "float16") == pytest.approx(0.1)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_what_is_not_finite_or_not_as_long_is_infinitely_off(number: float, dtype: str) -> None:
    broken = (-1.0, number, -3.0, -4.0)
    assert difference(EXPECTED, broken, dtype) == math.inf
    assert difference(broken, broken, dtype) == math.inf
    assert difference(EXPECTED, EXPECTED[:3], dtype) == math.inf


@pytest.mark.parametrize(
    ("dtype", "off", "is_good"),
    [
        ("float32", 0.0009, True),
        ("float32", 0.0011, False),
        ("bfloat16", 0.049, True),
        ("bfloat16", 0.051, False),
        ("float16", 0.051, False),
    ],
)
def test_the_tolerance_follows_the_format_of_the_generator(dtype: str, off: float, is_good: bool) -> None:
    canary = Canary(every_versions=1)
    check = canary.compare(3, EXPECTED, tuple(value - off for value in EXPECTED), dtype)
    assert check.is_good is is_good
    assert (canary.failures, canary.total_failures) == ((0, 0) if is_good else (1, 1))
    own = Canary(every_versions=1, tolerance=0.06)
    assert own.compare(3, EXPECTED, tuple(value - off for value in EXPECTED), dtype).is_good


def test_a_trainer_that_computes_in_16_bits_is_not_held_to_32() -> None:
    canary = Canary(every_versions=1)
    canary.note_trainer_start(0, EXPECTED, "bfloat16")
    check = canary.compare(0, EXPECTED, tuple(value - 0.04 for value in EXPECTED), "float32")
    assert (check.is_good, check.tolerance) == (True, 0.05)


def test_a_comparison_is_due_after_each_start_after_a_failure_and_every_so_many_versions() -> None:
    canary = Canary(every_versions=5)
    canary.note_trainer_start(10, EXPECTED, "float32")
    assert canary.is_due(10)
    canary.compare(10, EXPECTED, EXPECTED, "float32")
    assert [version for version in range(8, 18) if canary.is_due(version)] == [8, 9, 15, 16, 17]
    canary.note_generator_start()
    assert canary.is_due(11)
    canary.compare(11, EXPECTED, (0.0, 0.0, 0.0, 0.0), "float32")
    assert canary.is_due(12)
    canary.compare(12, EXPECTED, EXPECTED, "float32")
    assert (canary.is_due(13), canary.failures, canary.total_failures) == (False, 0, 1)
    assert not Canary(every_versions=0).is_due(1)


def test_what_an_earlier_trainer_found_is_forgotten_and_old_readings_go() -> None:
    canary = Canary(every_versions=1)
    canary.note_trainer_start(0, EXPECTED, "float32")
    for version in (1, 2, 3):
        canary.note_reading(version, EXPECTED)
    canary.note_reading(4, None)
    canary.compare(2, EXPECTED, EXPECTED, "float32")
    assert [version for version in range(5) if canary.reading(version)] == [2, 3]
    canary.note_trainer_start(1, EXPECTED, "float32")
    assert [version for version in range(5) if canary.reading(version)] == [1]
