"""The page on the experiment: its tables are what the committed rows come down to, by the commands that it
shows.
"""

import re
import shlex
from pathlib import Path

import pytest

import swarmd.simulate.report
from swarmd.cli.app import run_command_line

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "experiment"
PAGE = (FOLDER.parent / "experiment.md").read_text()
COMMANDS = [
    shlex.split(text.replace("\\\n", " "))
    for text in re.findall(r"^\$ swarmd (report docs/experiment/(?:.*\\\n)*.*)$", PAGE, flags=re.MULTILINE)
]


def out_of(command: list[str]) -> str:
    """The folder that a command writes, as the page has it."""
    return command[command.index("--out") + 1]


@pytest.mark.parametrize("command", COMMANDS, ids=[out_of(command) for command in COMMANDS])
def test_tables_are_those_of_the_rows(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(swarmd.simulate.report, "draw", lambda *_: ())
    kept = Path(out_of(command)) / "report.md"
    made = tmp_path / "made"
    assert run_command_line([str(made) if word == out_of(command) else word for word in command]) == 0
    text = (made / "report.md").read_text().rstrip()
    assert kept.read_text().startswith(text)
    # What the page itself says of the arms is one of these tables.
    table = text.partition("### Planned contrasts")[2].partition("\n\n")[2].partition("\n\n")[0]
    assert table in PAGE


def test_every_file_of_rows_and_every_report_has_its_command() -> None:
    assert {command[1] for command in COMMANDS} == {
        str(path.relative_to(ROOT)) for path in FOLDER.glob("*.parquet")
    }
    assert {out_of(command) for command in COMMANDS} == {
        str(path.relative_to(ROOT)) for path in FOLDER.iterdir() if path.is_dir()
    }


def test_the_rows_are_small_and_there() -> None:
    sizes = [path.stat().st_size for path in FOLDER.glob("*.parquet")]
    assert 0 < sum(sizes) < 4_000_000
