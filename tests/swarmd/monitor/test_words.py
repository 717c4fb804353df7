import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.monitor import words


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.9, "59 s"), (65, "1 min 05 s"), (3700, "1 h 01 min"), (90000, "1 d 1 h")],
)
def test_durations_read_well(seconds, text):
    assert words.duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (3_400_000, "3.4 MB"), (5 * 10**9, "5.0 GB")],
)
def test_sizes_read_well(count, text):
    assert words.size(count) == text


def test_a_peers_text_cannot_reach_the_terminal_as_control_characters():
    assert words.printable("evil\x1b[31m\nname\t\u202eabc", 40) == "evil [31m name abc"
    assert words.printable("a" * 50, 10) == "a" * 9 + "…"


def test_a_sparkline_rises_with_its_values():
    assert words.sparkline([0, 1, 2, 3, 4], 10) == [" ▂▄▆█"]
    assert words.sparkline([0.0, 0.5, 1.0], 10, height=2) == ["  █", " ██"]


def test_a_small_reward_is_seen_beside_a_large_one():
    assert words.sparkline([0.0001, 1.0], 10) == ["▁█"]


def test_nothing_but_zeros_is_an_empty_line():
    assert words.sparkline([0.0] * 5, 10) == [" " * 5]
    assert words.sparkline([], 10) == [""]


@given(st.lists(st.floats(0, 1), max_size=300), st.integers(1, 120), st.integers(1, 8))
def test_a_sparkline_never_exceeds_its_room(values, width, height):
    lines = words.sparkline(values, width, height)
    assert len(lines) == height
    assert {len(line) for line in lines} == {min(width, len(values)) if len(values) < 8 else width}


@given(st.lists(st.floats(0, 1), min_size=8, max_size=300), st.integers(1, 120))
def test_fitting_keeps_values_within_their_range(values, width):
    assert all(min(values) - 1e-9 <= v <= max(values) + 1e-9 for v in words.fit(values, width))
