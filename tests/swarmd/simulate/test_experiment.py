from pathlib import Path

import msgspec
import pytest

from swarmd.errors import ConfigError, HomeInUseError
from swarmd.simulate.arms import parse_arms
from swarmd.simulate.experiment import Experiment, Folder
from swarmd.simulate.plan import NodePlan, SwarmPlan
from swarmd.simulate.rows import Row, read_rows, write_rows
from swarmd.simulate.summary import Results

SWARM = SwarmPlan(nodes=(NodePlan(),) * 2, rounds=5, seed=0)


def experiment(arms: str = "8/0,4/4", rates: tuple[float, ...] = (), seeds: int = 2) -> Experiment:
    return Experiment(SWARM, ("model.name=tiny",), parse_arms(arms), rates, tuple(range(seeds)))


def test_every_arm_is_run_with_every_rate_and_seed() -> None:
    runs = experiment(rates=(1e-4, 6e-4)).runs()
    assert len(runs) == len({run.file for run in runs}) == 8
    assert [run.seed for run in runs] == [0] * 4 + [1] * 4
    first = runs[1]
    assert (first.arm, first.learning_rate, first.file) == ("4/4", 1e-4, "4-4-lr0.0001-seed0.parquet")
    config = first.swarm.node_config()
    assert (config.replay.local_groups, config.replay.external_groups) == (4, 4)
    assert (config.training.learning_rate, config.training.warmup_steps) == (1e-4, 0)


def test_settings_win_over_defaults_and_arms_over_settings() -> None:
    arms = parse_arms("4/4,4/4:training.external=mask,training.warmup_steps=7")
    given = Experiment(SWARM, ("training.external=f_tis", "training.warmup_steps=5"), arms, (), (0,))
    usual, other = (run.swarm.node_config().training for run in given.runs())
    assert (usual.external, usual.warmup_steps) == ("f_tis", 5)
    assert (other.external, other.warmup_steps) == ("mask", 7)


@pytest.mark.parametrize(
    ("arms", "rates"),
    [("4/4:training.extrenal=mask", ()), ("4/4:training.learning_rate=1e-4", (3e-4,)), ("4/4", (-1.0,))],
)
def test_wrong_settings_are_refused(arms: str, rates: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError):
        experiment(arms, rates).runs()


def test_a_folder_takes_more_arms_and_seeds(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "x")
    with folder.lock():
        folder.record(experiment("8/0", seeds=1), "1")
        recorded = folder.record(experiment("4/4", rates=(1e-4,), seeds=2), "2")
    assert recorded.arms == ("8/0", "4/4")
    assert recorded.seeds == (0, 1)
    assert recorded.learning_rates == (1e-4,)
    assert folder.recorded() == recorded


def test_a_folder_of_another_experiment_is_refused(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    longer = msgspec.structs.replace(SWARM, rounds=6)
    with folder.lock():
        folder.record(experiment(), "1")
        with pytest.raises(ConfigError, match=r"rounds 5, not 6.*--out"):
            folder.record(Experiment(longer, ("model.name=tiny",), parse_arms("8/0"), (), (0,)), "1")
        with pytest.raises(ConfigError, match="settings"):
            folder.record(Experiment(SWARM, ("model.name=tiny-weak",), parse_arms("8/0"), (), (0,)), "1")
        (tmp_path / "plan.json").write_text("{")
        with pytest.raises(ConfigError, match=r"plan\.json"):
            folder.record(experiment(), "1")


def test_a_folder_is_for_one_at_a_time(tmp_path: Path) -> None:
    with Folder(tmp_path).lock(), pytest.raises(HomeInUseError), Folder(tmp_path).lock():
        pass


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    rows = [
        Row(node=0, kind="honest", round=0, virtual_seconds=0.0, heldout_reward=0.5),
        Row(
            arm="4/4",
            node=1,
            kind="late",
            round=1,
            virtual_seconds=1.0,
            own_reward=0.25,
            own_reward_by_task={"bf": 0.25},
        ),
    ]
    write_rows(tmp_path / "a.parquet", rows)
    assert read_rows(tmp_path / "a.parquet") == rows
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]


def row(node: int, number: int, own: float | None = None, held: float | None = None, **more: object) -> Row:
    fields = {"kind": "honest", "virtual_seconds": float(number), **more}
    return Row(node=node, round=number, own_reward=own, heldout_reward=held, **fields)


def test_the_summary_holds_what_is_done(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    with folder.lock():
        recorded = folder.record(experiment(), "1")
    for seed in (1, 0):
        for rate in (1e-4, 3e-4):
            made = [row(0, 0, held=0.1 * seed), row(0, 1, own=0.5 + seed, held=0.1)]
            labelled = [
                msgspec.structs.replace(one, arm="8/0", learning_rate=rate, seed=seed, wall_seconds=1.0)
                for one in made
            ]
            write_rows(folder.runs / f"{seed}-{rate}.parquet", labelled)
    (folder.runs / "half.partial").write_bytes(b"PAR1")
    Results(folder, recorded).write()
    summary = msgspec.json.decode(folder.summary.read_bytes())
    assert summary["arms"]["8/0@0.0001"] == {
        "seeds": [0, 1],
        "own_reward_total": [0.5, 1.5],
        "heldout_auc": [pytest.approx(0.05), pytest.approx(0.1)],
    }
    assert set(summary["arms"]) == {"8/0@0.0001", "8/0@0.0003"}
    assert summary["seconds"] == 8.0
    assert summary["config"]["swarm"]["rounds"] == 5
