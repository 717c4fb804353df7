"""The report of simulated swarms, from files to tables and plots."""

import re
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from swarmd.cli.app import run_command_line
from swarmd.monitor.history import History, RoundRecord
from swarmd.simulate.comparison import SECONDARY
from swarmd.simulate.report import page, planned_pairs, read_sources, runs_of
from swarmd.simulate.rows import Row, read_rows, write_rows

MakeRows = Callable[..., list[Row]]
PNG = b"\x89PNG"


@pytest.fixture
def folder(tmp_path: Path, make_rows: MakeRows) -> Path:
    """Three seeds of 8/0 and 4/4, the second with twice the own reward of the first; one more of 4/4."""
    runs = tmp_path / "experiment" / "runs"
    runs.mkdir(parents=True)
    for seed in range(3):
        write_rows(runs / f"8-0-{seed}.parquet", make_rows("8/0", seed, own=(0.1 + 0.01 * seed,) * 20))
    for seed in range(4):
        write_rows(
            runs / f"4-4-{seed}.parquet",
            make_rows(
                "4/4", seed, own=(0.2 + 0.02 * seed,) * 20, heldout=(0.0, 0.2, 0.4, 0.4, 0.5 + 0.01 * seed)
            ),
        )
    return tmp_path / "experiment"


def line_of(page: str, *cells: str) -> str:
    """The first row of a table that begins with these cells."""
    pattern = r"^\| " + r" \| ".join(map(re.escape, cells)) + r" \|.*$"
    (found, *_) = re.findall(pattern, page, flags=re.MULTILINE)
    return str(found)


def test_a_report_has_tables_and_plots(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report"
    assert run_command_line(["report", str(folder), "--out", str(out)]) == 0
    written = [Path(line) for line in capsys.readouterr().out.split()]
    assert {path.name for path in written} == {
        "report.md", "tables.tex", "own-reward.png", "totals.png", "held-out.png", "held-out-means.png",
    }  # fmt: skip
    assert all(path.read_bytes()[:4] == PNG for path in written if path.suffix == ".png")
    page = (out / "report.md").read_text()
    assert "7 swarms of 2 learning nodes, 20 rounds" in page
    # Own totals of the common seeds 0, 1, 2: 2, 2.2, 2.4 and twice that.
    line = line_of(page, "4/4", "8/0", "own reward, total")
    assert "| 3 | +2.200 [" in line
    assert "+100% | 0.25 | 0.25 | 0.25 |" in line
    assert "held-out reward, mean over rounds" in line_of(page, "4/4", "8/0")
    assert line_of(page, "bf").count("/") == 2
    for name in re.findall(r"\]\(([^)]+)\)", page):
        assert (out / name).is_file()
    tex = (out / "tables.tex").read_text()
    assert tex.count(r"\begin{table}") == tex.count(r"\end{table}") == 3
    assert r"+100\%" in tex


def test_the_rows_in_one_file_make_the_same_report(folder: Path, tmp_path: Path) -> None:
    out, rows = tmp_path / "out", tmp_path / "kept" / "rows.parquet"
    assert run_command_line(["report", str(folder), "--out", str(out), "--rows", str(rows)]) == 0
    assert len(read_rows(rows)) == 7 * 2 * 21
    runs = runs_of(read_sources([rows]))
    assert (out / "report.md").read_text().startswith(page(runs, planned_pairs(runs, "", ())))


def test_unlike_starts_have_a_table_of_their_own(folder: Path, make_rows: MakeRows) -> None:
    alike = runs_of(read_sources([folder]))
    assert "By start" not in page(alike, planned_pairs(alike, "", ()))
    unlike = []
    for arm, last in (("8/0", 0.3), ("4/4", 0.6)):
        unlike.append(
            make_rows(arm, 0, heldout=(0.1, 0.1, 0.1, 0.1, last), model="a")
            + make_rows(arm, 0, heldout=(0.2, 0.2, 0.2, 0.2, 0.2), model="b", first_node=2)
        )
    runs = runs_of(unlike)
    text = page(runs, planned_pairs(runs, "", ()))
    assert line_of(text, "a", "bf") == "| a | bf | 0.100 | 0.300 | 0.600 |"
    assert line_of(text, "b", "bf") == "| b | bf | 0.200 | 0.200 | 0.200 |"


def test_rows_of_before_there_was_a_column_are_read(tmp_path: Path, make_rows: MakeRows) -> None:
    rows = make_rows("8/0", 0)
    write_rows(tmp_path / "rows.parquet", rows)
    table = pq.read_table(tmp_path / "rows.parquet")
    pq.write_table(table.drop_columns(["model"]), tmp_path / "older.parquet")
    assert read_rows(tmp_path / "older.parquet") == rows


def test_a_report_of_some_arms_and_rates_leaves_the_others_out(
    folder: Path, tmp_path: Path, make_rows: MakeRows
) -> None:
    for rate in (1e-4, 3e-4):
        rows = make_rows("2/6", 0, learning_rate=rate)
        write_rows(folder / "runs" / f"2-6-{rate}.parquet", rows)
    out, kept = tmp_path / "out", tmp_path / "kept.parquet"
    command = ["report", str(folder), "--out", str(out), "--rows", str(kept), "--baseline", "4/4"]
    assert run_command_line([*command, "--arms", "4/4,2/6", "--learning-rates", "3e-4"]) == 0
    assert {(row.arm, row.learning_rate) for row in read_rows(kept)} == {("4/4", 3e-4), ("2/6", 3e-4)}
    text = (out / "report.md").read_text()
    assert line_of(text, "2/6", "4/4")
    assert "8/0" not in text


def test_only_the_planned_contrasts_are_made(folder: Path, make_rows: MakeRows) -> None:
    for seed in range(3):
        write_rows(folder / "runs" / f"6-2-{seed}.parquet", make_rows("6/2", seed))
    runs = runs_of(read_sources([folder]))
    planned = page(runs, planned_pairs(runs, "", ["4/4 vs 6/2"]))
    assert line_of(planned, "4/4", "6/2")
    assert "| 6/2 | 8/0 |" not in planned
    against = page(runs, planned_pairs(runs, "6/2", ()))
    assert line_of(against, "8/0", "6/2")
    assert line_of(against, "4/4", "6/2")


def test_one_arm_alone_is_shown_without_contrasts(tmp_path: Path, make_rows: MakeRows) -> None:
    write_rows(tmp_path / "rows.parquet", make_rows("4/4", 0, heldout=(None,) * 5))
    out = tmp_path / "report"
    assert run_command_line(["report", str(tmp_path / "rows.parquet"), "--out", str(out)]) == 0
    page = (out / "report.md").read_text()
    assert "Planned contrasts" not in page
    assert {path.name for path in out.glob("*.png")} == {"own-reward.png", "totals.png"}
    assert line_of(page, "4/4", "0.0003", "1", "–", "–", "2.00")


@pytest.mark.parametrize(
    ("more", "code", "says"),
    [
        (["--baseline", "2/6"], 2, "there is no arm '2/6': there are 8/0, 4/4"),
        (["--contrast", "2/6 vs 8/0"], 2, "there is no arm '2/6'"),
        (["--contrast", "4/4"], 2, "expected 'ARM vs BASE'"),
        (
            ["--arms", "8/0,4/4:replay.sampler=fresh"],
            2,
            "no run of arm 4/4:replay.sampler=fresh among those asked for: "
            "there are 4/4 at 0.0003, 8/0 at 0.0003",
        ),
        (
            ["--learning-rates", "1e-4"],
            2,
            "no run of learning rate 0.0001 among those asked for: there are 4/4 at 0.0003",
        ),
        (
            ["--arms", "8/0", "--learning-rates", "3e-4,1e-4"],
            2,
            "no run of learning rate 0.0001 among those asked for: there are 4/4 at 0.0003, 8/0 at 0.0003",
        ),
        (["--learning-rates", "fast"], 2, "expected numbers with commas"),
    ],
)
def test_what_cannot_be_compared_is_one_line_and_nothing_is_written(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], code: int, says: str
) -> None:
    out = tmp_path / "report"
    assert run_command_line(["report", str(folder), "--out", str(out), *more]) == code
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert not out.exists()


def test_sources_that_hold_nothing_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(b"PAR1 and then nothing")
    for source, says, code in (
        (tmp_path, "has no finished run", 2),
        (tmp_path / "nowhere", "does not exist", 2),
        (damaged, "cannot be read as rows", 1),
    ):
        assert run_command_line(["report", str(source), "--out", str(tmp_path / "out")]) == code
        said = capsys.readouterr().err
        assert says in said
        assert said.count("\n") == 1


async def test_real_swarms_are_reported_on_by_their_histories(tmp_path: Path) -> None:
    for run in (1, 2):
        for node in (1, 2):
            home = tmp_path / "real" / f"run-{run}" / f"node-{node}"
            home.mkdir(parents=True)
            async with History(home / "history.sqlite", max_rounds=100) as history:
                for number in range(1, 7):
                    await history.append(
                        RoundRecord(
                            round=number,
                            ended_at=100.0 + number,
                            policy_version=number,
                            own_reward=0.1 * run,
                            eval_reward=0.2 + 0.1 * (number // 3),
                            local_groups=5,
                            external_groups=3,
                            filled_groups=1,
                            learning_rate=3e-4,
                            updates=1,
                        )
                    )
    files = read_sources([tmp_path / "real"])
    assert [len(rows) for rows in files] == [12, 12]
    assert {(row.arm, row.learning_rate, row.seed) for row in files[1]} == {("4/4", 3e-4, 2)}
    runs = runs_of(files)
    assert runs.values("4/4", 3e-4, SECONDARY.value) == pytest.approx({1: 0.6, 2: 1.2})
    # Evaluated in rounds 1, 3 and 6, and repeated in between.
    heldout = dict(runs.of("4/4", 3e-4)[1].heldout_curve)
    assert heldout == pytest.approx({1.0: 0.2, 3.0: 0.3, 6.0: 0.4})
    assert runs.of("4/4", 3e-4)[1].updates == 6
