"""An experiment: arms times learning rates times seeds, each a swarm of its own. What is there to run, and
the folder in which the results come together.

    DIR/plan.json     what all runs have in common, and the arms, rates and seeds asked for so far
    DIR/runs/         one Parquet file for each run that is done
    DIR/summary.json  totals of all runs that are done

A folder takes further arms, rates and seeds at any time, and nothing that contradicts what is in it.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from swarmd.config_sources import load_config
from swarmd.errors import ConfigError, HomeInUseError, SwarmdError
from swarmd.simulate.arms import Arm
from swarmd.simulate.messages import Run
from swarmd.simulate.plan import SwarmPlan, config_sections

__all__ = ["DEFAULTS", "Experiment", "Folder", "Recorded"]

Item = TypeVar("Item")

DEFAULTS = ("training.learning_rate=3e-4", "training.warmup_steps=0")
"""What a simulation sets unless told otherwise. Warm-up is for nodes that run for long."""


@dataclass(frozen=True)
class Experiment:
    """What to run."""

    swarm: SwarmPlan
    """What all runs have in common. Its seed is of no meaning, and its configuration is in `settings`."""
    settings: tuple[str, ...]
    """Of all runs, as `--set` takes them."""
    arms: tuple[Arm, ...]
    learning_rates: tuple[float, ...]
    """Empty: the configured one."""
    seeds: tuple[int, ...]

    def runs(self) -> tuple[Run, ...]:
        """All of them, seed by seed, so that the first results can be compared early.

        Raises ConfigError for settings that are wrong.
        """
        return tuple(
            self._run(arm, rate, seed)
            for seed in self.seeds
            for rate in self.learning_rates or (None,)
            for arm in self.arms
        )

    def _run(self, arm: Arm, rate: float | None, seed: int) -> Run:
        if rate is not None and "training.learning_rate" in arm.settings:
            raise ConfigError(f"--learning-rates: {arm.name} has a learning rate of its own")
        assignments = [*DEFAULTS, *self.settings, *arm.assignments]
        if rate is not None:
            assignments.append(f"training.learning_rate={rate!r}")
        config = load_config(assignments=assignments).config
        learning_rate = config.training.learning_rate
        return Run(
            arm=arm.name,
            learning_rate=learning_rate,
            seed=seed,
            swarm=msgspec.structs.replace(
                arm.of(self.swarm), seed=seed, config=dict(config_sections(config))
            ),
            file=f"{arm.slug}-lr{learning_rate:g}-seed{seed}.parquet",
        )


class Recorded(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `plan.json` holds."""

    swarm: SwarmPlan
    settings: tuple[str, ...]
    swarmd: str
    """Version that began it."""
    arms: tuple[str, ...]
    learning_rates: tuple[float, ...]
    seeds: tuple[int, ...]


class Folder:
    """The folder of an experiment."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs = path / "runs"
        self.summary = path / "summary.json"
        self._plan = path / "plan.json"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Nobody else runs in it meanwhile.

        Raises HomeInUseError, and ConfigError for a folder that cannot be used.
        """
        try:
            self.runs.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise ConfigError(
                f"--out {self.path} cannot be used ({error.strerror}): choose another"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError as error:
            raise HomeInUseError(f"a simulation is running in {self.path} already") from error
        finally:
            os.close(descriptor)

    def record(self, experiment: Experiment, version: str) -> Recorded:
        """Write down what is asked for, on top of what was. Raises ConfigError when the two do not fit."""
        before = self.recorded()
        if before is not None:
            for name in ("swarm", "settings"):
                mine, theirs = getattr(experiment, name), getattr(before, name)
                if mine != theirs:
                    raise ConfigError(
                        f"{self.path} holds another experiment ({_difference(name, theirs, mine)}): "
                        "choose another --out"
                    )
        recorded = Recorded(
            swarm=experiment.swarm,
            settings=experiment.settings,
            swarmd=before.swarmd if before else version,
            arms=_union(before.arms if before else (), [arm.name for arm in experiment.arms]),
            learning_rates=_union(before.learning_rates if before else (), experiment.learning_rates),
            seeds=_union(before.seeds if before else (), experiment.seeds),
        )
        self._replace(self._plan, recorded)
        return recorded

    def recorded(self) -> Recorded | None:
        """What was asked for before. Raises ConfigError when it cannot be read."""
        try:
            return msgspec.json.decode(self._plan.read_bytes(), type=Recorded)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError(f"{self._plan} is no plan of this swarmd: {error}") from error

    def is_done(self, run: Run) -> bool:
        """Whether its rows are there. A file is there whole or not at all."""
        return (self.runs / run.file).is_file()

    def write_summary(self, document: object) -> None:
        """Replace the summary in one step."""
        self._replace(self.summary, document)

    def _replace(self, path: Path, document: object) -> None:
        temporary = path.with_suffix(".new")
        try:
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
            os.replace(temporary, path)
        except OSError as error:
            raise SwarmdError(f"{path} cannot be written: {error.strerror or error}") from error


def _union(before: Sequence[Item], now: Sequence[Item]) -> tuple[Item, ...]:
    return tuple(dict.fromkeys((*before, *now)))


def _difference(name: str, theirs: object, mine: object) -> str:
    """The first thing that is not the same, in words."""
    if isinstance(theirs, msgspec.Struct):
        for field in theirs.__struct_fields__:
            if getattr(theirs, field) != getattr(mine, field):
                return _difference(field, getattr(theirs, field), getattr(mine, field))
    return f"{name} {_short(theirs)}, not {_short(mine)}"


def _short(value: object) -> str:
    text = re.sub(r"\s+", " ", msgspec.json.encode(value).decode())
    return text if len(text) <= 60 else f"{text[:57]}..."
