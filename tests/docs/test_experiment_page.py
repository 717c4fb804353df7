"""The page on the experiment: its tables are what the committed rows come down to."""

from pathlib import Path

import pytest

from swarmd.simulate.report import page, planned_pairs, read_sources, runs_of

FOLDER = Path(__file__).parents[2] / "docs" / "experiment"
PAGE = (FOLDER.parent / "experiment.md").read_text()


@pytest.mark.parametrize("rows", sorted(FOLDER.glob("*.parquet")), ids=lambda path: path.stem)
def test_tables_are_those_of_the_rows(rows: Path) -> None:
    runs = runs_of(read_sources([rows]))
    made = page(runs, planned_pairs(runs, "", ()))
    assert (FOLDER / rows.stem / "report.md").read_text().startswith(made)
    # What the page itself says of all arms is one of these tables.
    table = made.partition("### Planned contrasts")[2].partition("\n\n")[2].partition("\n\n")[0]
    assert table in PAGE


def test_the_rows_are_small_and_there() -> None:
    sizes = [path.stat().st_size for path in FOLDER.glob("*.parquet")]
    assert 0 < sum(sizes) < 4_000_000
