import time

import pytest

from swarmd.cli.simulate_progress import SimulationProgress
from swarmd.simulate.lanes import Progress


def test_a_line_says_what_is_done_and_the_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(runs=4, done=1, began=time.monotonic() - 900, under_way={"a": 0.5, "b": 0.5})
    with SimulationProgress(progress) as shown:
        shown.say_done("4-4-lr0.0003-seed0", 61.4)
    assert progress.part == 0.5
    said = capsys.readouterr().err
    assert "4-4-lr0.0003-seed0: done in 61 s; 1 of 4 runs, 0:15:0" in said


def test_nothing_is_foretold_before_there_is_anything() -> None:
    assert Progress(runs=4).seconds_left is None
    assert Progress(runs=0).part == 1.0
