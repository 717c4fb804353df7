"""A real node whose generator goes wrong without noticing: it is caught, told of, repaired, and given up
when nothing helps.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.swarm

HERE = Path(__file__).parent


def test_a_generator_with_spoilt_weights_is_caught_repaired_and_in_the_end_given_up(
    make_node: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil = tmp_path / "spoil"

    def set_spoil(text: str) -> None:
        # In one go: the generator that read half of it would end, and be started once more.
        (tmp_path / "next").write_text(text)
        os.replace(tmp_path / "next", spoil)

    set_spoil("0 0")
    monkeypatch.setenv("SPOIL", str(spoil))
    monkeypatch.setenv("PYTHONPATH", f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    options = ("--set", "generation.canary_every_versions=1", "--set", "workers.max_fast_failures=3")
    node = make_node("home", "--isolated", *options)
    node.program = (str(HERE / "spoilt_node.py"),)
    node.start()
    good = node.wait_for(lambda status: status["round"] >= 1 and status["canary"]["state"] == "good")
    assert good["canary"]["difference"] < good["canary"]["tolerance"] == 1e-3
    assert good["canary"]["failures"] == 0

    def is_repaired(failures: int, since: int) -> Callable[[Any], bool]:
        def check(status: Any) -> bool:
            canary = status["canary"]
            is_good = (canary["state"], canary["failures"]) == ("good", failures)
            return is_good and status["round"] >= since + 2 and status["problems"] == []

        return check

    # One group has a log-probability that is no number: it is refused, and rounds go on.
    set_spoil("0 1")
    refused = node.wait_for(
        lambda status: (
            status["buffer"]["rejected"].get("not_finite") and is_repaired(0, good["round"])(status)
        )
    )
    assert refused["buffer"]["rejected"]["not_finite"] == 1
    assert "of what it sampled are not finite: the generator loads its weights again" in node.printed()

    # Loading the weights again is enough, and rounds go on.
    set_spoil("1 0")
    again = node.wait_for(is_repaired(1, refused["round"]))
    assert again["workers"]["generator"]["restarts"] == 0
    assert "differ by" in node.printed()

    # Here it is not: the generator is restarted.
    set_spoil("2 0")
    restarted = node.wait_for(is_repaired(3, again["round"]))
    assert restarted["workers"]["generator"]["restarts"] == 1
    assert restarted["workers"]["trainer"]["restarts"] == 0
    assert "the generator is restarted" in node.printed()

    # And here nothing helps.
    set_spoil("1000 0")
    assert node.process.wait(timeout=120) == 1
    last = node.printed().strip().splitlines()[-1]
    assert last.startswith("swarmd: generator and trainer differ by ")
    assert "3 times in a row" in last
    assert "generation.canary_tolerance" in last
    assert "Traceback" not in node.printed()
    assert node.ask("status")["canary"]["state"] == "bad"
