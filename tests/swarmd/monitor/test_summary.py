import io
from pathlib import Path

import pytest
from rich.console import Console
from sample_status import sample_peers, sample_status

from swarmd.monitor.history import RoundRecord
from swarmd.monitor.summary import improvement, summary


def rounds(rewards):
    return [
        RoundRecord(round=number, ended_at=0.0, policy_version=number, own_reward=reward)
        for number, reward in enumerate(rewards, 1)
    ]


def printed(renderable):
    console = Console(width=100, file=io.StringIO(), color_system=None)
    console.print(renderable)
    return console.file.getvalue()


def test_improvement_compares_the_first_and_last_ten_rounds():
    first, last, ratio = improvement(rounds([0.1] * 10 + [0.9] * 5 + [0.25] * 10))
    assert first == pytest.approx(0.1)
    assert last == pytest.approx(0.25)
    assert ratio == pytest.approx(2.5)


def test_a_short_run_compares_its_halves():
    assert improvement(rounds([0.1, 0.1, 0.3, 0.3])) == pytest.approx((0.1, 0.3, 3.0))
    assert improvement(rounds([0.1])) == (None, None, None)
    assert improvement([]) == (None, None, None)


def test_no_reward_at_first_has_no_ratio():
    assert improvement(rounds([0.0] * 10 + [0.5] * 10)) == (0.0, 0.5, None)


def test_the_summary_names_reward_peers_and_plot():
    text = printed(
        summary(rounds([0.1] * 10 + [0.25] * 10), sample_status(), sample_peers(), Path("/home/reward.png"))
    )
    for part in ("0.100 → 0.250", "2.50 x", "0.190", "212 of 480", "140 groups from owl", "/home/reward.png"):
        assert part in text, part


def test_the_summary_of_an_isolated_node_that_did_nothing_still_prints():
    text = printed(summary([], sample_status(is_isolated=True, round=0), (), None))
    assert "0 in 2 min 11 s" in text
    assert "peers" not in text
