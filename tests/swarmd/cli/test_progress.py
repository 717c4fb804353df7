import pytest

from swarmd.cli.progress import StepProgress


def test_without_a_terminal_ten_lines_tell_the_progress_of_a_phase(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with StepProgress() as progress:
        for step in range(1, 201):
            progress.show("answering", step, 200, "loss 1.0")
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert lines[0] == "answering: step 20 of 200, loss 1.0"
    assert lines[-1] == "answering: step 200 of 200, loss 1.0"
    assert len(lines) == 10
    assert captured.out == ""


def test_a_short_phase_tells_every_step(capsys: pytest.CaptureFixture[str]) -> None:
    with StepProgress() as progress:
        for step in (1, 2, 3):
            progress.show("hiding", step, 3, "")
    assert len(capsys.readouterr().err.splitlines()) == 3
