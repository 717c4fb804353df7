import os
import sqlite3

import msgspec
import pytest

from swarmd.monitor.history import FORMAT, History, RoundRecord, mean_own_reward, read_rounds


def record(number, reward=0.5):
    return RoundRecord(round=number, ended_at=1000.0 + number, policy_version=number, own_reward=reward)


async def write(path, numbers, max_rounds=1000):
    async with History(path, max_rounds=max_rounds) as history:
        for number in numbers:
            await history.append(record(number))
    return history


async def test_rounds_come_back_in_order_and_complete(tmp_path):
    path = tmp_path / "history.sqlite"
    full = RoundRecord(
        round=3, ended_at=1.5, policy_version=2, own_reward=None, external_reward=0.25, eval_reward=0.125,
        local_groups=4, external_groups=3, filled_groups=1, groups_with_signal=5, peers=2, tokens=900,
        loss=-0.5, grad_norm=0.75, entropy=1.5, mean_ratio=1.0, clipped_share=0.0, updates=1,
        kl=0.5, sampler_kl=0.25, sampler_gap=0.125, effective_share=0.75, dropped_share=0.5,
        lag_groups=(3, 0, 1), learning_rate=1e-4,
        step_seconds=0.5, wait_seconds=0.25, loop_lag_max_ms=4.0, resident_bytes=10,
    )  # fmt: skip
    async with History(path, max_rounds=10) as history:
        await history.append(record(1))
        await history.append(full)
        assert read_rounds(path) == (record(1), full)
    assert read_rounds(path, last=1) == (full,)


async def test_only_the_newest_rounds_are_kept(tmp_path):
    path = tmp_path / "history.sqlite"
    await write(path, range(1, 31), max_rounds=10)
    assert [r.round for r in read_rounds(path)] == list(range(21, 31))


async def test_a_resumed_node_goes_on_where_its_checkpoint_was(tmp_path):
    path = tmp_path / "history.sqlite"
    await write(path, range(1, 11))
    async with History(path, max_rounds=100) as history:
        await history.append(record(6, reward=0.9))
    rounds = read_rounds(path)
    assert [r.round for r in rounds] == [1, 2, 3, 4, 5, 6]
    assert rounds[-1].own_reward == 0.9


async def test_an_unreadable_file_is_set_aside_and_not_overwritten(tmp_path):
    path = tmp_path / "history.sqlite"
    path.write_bytes(b"not a database" * 100)
    await write(path, [1])
    assert [r.round for r in read_rounds(path)] == [1]
    (aside,) = [name for name in os.listdir(tmp_path) if name.endswith(".unreadable")]
    assert (tmp_path / aside).read_bytes() == b"not a database" * 100


async def test_a_file_of_another_format_is_set_aside(tmp_path):
    path = tmp_path / "history.sqlite"
    await write(path, [1, 2])
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA user_version = {FORMAT + 1}")
    database.close()
    await write(path, [3])
    assert [r.round for r in read_rounds(path)] == [3]
    assert any(name.endswith(".unreadable") for name in os.listdir(tmp_path))


async def test_a_file_of_an_older_swarmd_is_read_and_gets_the_columns_it_lacks(tmp_path):
    path = tmp_path / "history.sqlite"
    await write(path, [1, 2])
    with sqlite3.connect(path) as database:
        for column in ("sampler_kl", "lag_groups", "updates"):
            database.execute(f"ALTER TABLE rounds DROP COLUMN {column}")
    database.close()
    assert read_rounds(path) == (record(1), record(2))
    newer = msgspec.structs.replace(record(3), sampler_kl=0.25, lag_groups=(2, 1), updates=4)
    async with History(path, max_rounds=100) as history:
        await history.append(newer)
    assert read_rounds(path) == (record(1), record(2), newer)
    assert not any(name.endswith(".unreadable") for name in os.listdir(tmp_path))


async def test_a_round_that_cannot_be_written_is_counted_and_the_next_is_tried(tmp_path):
    path = tmp_path / "history.sqlite"
    async with History(path, max_rounds=100) as history:
        await history.append(record(1))
        with sqlite3.connect(path) as database:
            database.execute("ALTER TABLE rounds RENAME TO away")
        await history.append(record(2))
        assert history.lost_rounds == 1
        assert "history cannot be written" in history.problem
        with database:
            database.execute("ALTER TABLE away RENAME TO rounds")
        database.close()
        await history.append(record(3))
        assert history.problem == ""
    assert [r.round for r in read_rounds(path)] == [1, 3]


async def test_a_folder_that_appears_later_is_used_then(tmp_path):
    path = tmp_path / "later" / "history.sqlite"
    async with History(path, max_rounds=100) as history:
        assert "cannot be opened" in history.problem
        await history.append(record(1))
        assert history.lost_rounds == 1
        path.parent.mkdir()
        await history.append(record(2))
    assert [r.round for r in read_rounds(path)] == [2]


def test_no_file_has_no_rounds(tmp_path):
    assert read_rounds(tmp_path / "absent.sqlite") == ()
    assert os.listdir(tmp_path) == []


def test_the_mean_leaves_out_rounds_without_own_rollouts():
    assert mean_own_reward([record(1, 0.2), record(2, None), record(3, 0.4)]) == pytest.approx(0.3)
    assert mean_own_reward([record(1, None)]) is None
