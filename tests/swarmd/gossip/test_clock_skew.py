"""Clocks are two numbers here: what the wall shows, and how long the machine has been up."""

import random

import pytest

from swarmd.gossip.clock_skew import ClockSkew


class Clocks:
    """Of a node that is `ahead` seconds ahead of the true time, which starts at 1000."""

    def __init__(self, ahead: float = 0.0) -> None:
        self.ahead = ahead
        self.up = 7.0
        self.skew = ClockSkew(clock=lambda: self.up, wall_clock=lambda: self.true_time() + self.ahead)

    def true_time(self) -> float:
        return 993.0 + self.up

    def hear(self, peer: str, delay: float = 0.1, peer_ahead: float = 0.0) -> None:
        """A message that was `delay` seconds under way, from a peer whose clock is ahead."""
        self.up += 1.0
        sealed_at = self.true_time() - delay + peer_ahead
        self.skew.note(peer, round(sealed_at * 1000), self.up)


@pytest.mark.parametrize(("ahead", "words"), [(-42.0, "42 s behind"), (61.0, "61 s ahead of")])
def test_a_wrong_clock_is_measured_and_said(ahead: float, words: str) -> None:
    clocks = Clocks(ahead)
    for peer in "abc":
        clocks.hear(peer)
    assert clocks.skew.seconds() == pytest.approx(ahead, abs=0.2)
    assert clocks.skew.peers == 3
    assert clocks.skew.problem() == f"this clock is {words} your peers: set it, by NTP for instance"


def test_a_right_clock_says_nothing() -> None:
    clocks = Clocks()
    assert clocks.skew.seconds() is None
    clocks.hear("a")
    assert (clocks.skew.problem(), clocks.skew.change()) == ("", "")


def test_the_quickest_of_a_peers_messages_counts() -> None:
    clocks = Clocks()
    rng = random.Random(0)
    for _ in range(8):
        clocks.hear("a", delay=rng.uniform(5, 60))
    clocks.hear("a", delay=0.2)
    assert clocks.skew.seconds() == pytest.approx(0.2)


@pytest.mark.parametrize("lie", [1e9, -1e9, 40.0])
def test_neither_a_liar_nor_a_slow_line_moves_it(lie: float) -> None:
    clocks = Clocks()
    for peer in "abc":
        clocks.hear(peer)
    clocks.hear("liar", peer_ahead=lie)
    clocks.hear("slow", delay=50.0)
    assert clocks.skew.seconds() == pytest.approx(0.1, abs=0.01)
    assert clocks.skew.problem() == ""


def test_of_two_peers_both_must_differ_and_one_alone_is_called_so() -> None:
    clocks = Clocks()
    clocks.hear("a", peer_ahead=30.0)
    assert clocks.skew.problem().startswith("this clock is 30 s behind the only peer that was heard")
    clocks.hear("b")
    assert clocks.skew.problem() == ""


def test_a_change_is_said_once() -> None:
    clocks = Clocks()
    said = []
    for ahead in (0.0, 0.0, 20.0, 21.0, 22.0, 3600.0, 3601.0, 4.0, 0.0, 0.0):
        clocks.ahead = ahead  # Somebody sets it; what was heard before tells, no new message is needed.
        clocks.hear("a")
        said.append(clocks.skew.change())
    assert [bool(line) for line in said] == [
        False,
        False,
        True,
        False,
        False,
        True,
        False,
        False,
        True,
        False,
    ]
    assert said[-2] == "this clock agrees with those of your peers again"


def test_a_clock_that_is_set_shows_at_once() -> None:
    clocks = Clocks()
    for peer in "abc":
        clocks.hear(peer)
    clocks.ahead = -3600.0
    assert clocks.skew.seconds() == pytest.approx(-3600, abs=0.2)


def test_peers_that_fell_silent_count_no_more_and_few_are_remembered() -> None:
    clocks = Clocks(ahead=100.0)
    for number in range(300):
        clocks.hear(str(number))
    assert clocks.skew.peers == 256
    clocks.up += 400
    assert (clocks.skew.peers, clocks.skew.seconds(), clocks.skew.problem()) == (0, None, "")


def test_a_refused_message_is_looked_at_rarely_whatever_comes_of_it() -> None:
    clocks = Clocks()
    assert clocks.skew.take_look("a")
    assert not clocks.skew.take_look("a")
    assert clocks.skew.take_look("b")
    clocks.up += 11
    assert clocks.skew.take_look("a")
    assert (clocks.skew.peers, clocks.skew.seconds()) == (0, None)
