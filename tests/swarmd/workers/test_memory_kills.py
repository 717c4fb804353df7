from pathlib import Path

import pytest

from swarmd.workers.memory_kills import memory_kills


@pytest.mark.parametrize(
    ("text", "count"), [("nr_free_pages 7\noom_kill 3\n", 3), ("nr_free_pages 7\n", 0), ("", 0)]
)
def test_the_kernels_count_is_read(tmp_path: Path, text: str, count: int) -> None:
    (tmp_path / "vmstat").write_text(text)
    assert memory_kills(tmp_path / "vmstat") == count


def test_where_the_kernel_does_not_count_there_are_none(tmp_path: Path) -> None:
    assert memory_kills(tmp_path / "missing") == 0
