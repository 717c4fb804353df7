"""Comparison of arms. An arm is shown at each of its learning rates, and compared with another one at the
best rate of each, since a gain at one rate may be no more than a better rate. Swarms of one seed have the
same start and the same questions in all arms, so differences are taken within seeds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from swarmd.errors import ConfigError
from swarmd.simulate.measures import RunMeasures
from swarmd.simulate.statistics import Estimate, SignFlip, estimate, holm, iqm, sign_flip

__all__ = ["PRIMARY", "SECONDARY", "Contrast", "Measure", "Runs", "compare", "parse_contrast"]

Value = Callable[[RunMeasures], float | None]


@dataclass(frozen=True)
class Measure:
    """A number of a run that arms are compared by."""

    name: str
    value: Value


PRIMARY = Measure("held-out reward, mean over rounds", lambda run: run.heldout_auc)
SECONDARY = Measure("own reward, total", lambda run: run.own_total)
_BETWEEN = " vs "
_LOCAL = re.compile(r"\d+")


@dataclass(frozen=True)
class Contrast:
    """One arm against another, each at its best learning rate."""

    arm: str
    arm_rate: float
    base: str
    base_rate: float
    measure: Measure
    difference: Estimate
    """Arm less base, within seeds."""
    gain: float | None
    """Interquartile mean of the arm over that of the base, less 1, on the common seeds. None: base is 0."""
    test: SignFlip
    holm_p: float
    """Adjusted for all contrasts of the measure."""


class Runs:
    """All runs, by arm, learning rate and seed.

    Raises ConfigError when two of them are the same.
    """

    def __init__(self, runs: Iterable[RunMeasures]) -> None:
        self._runs: dict[tuple[str, float], dict[int, RunMeasures]] = {}
        for run in runs:
            seeds = self._runs.setdefault((run.arm, run.learning_rate), {})
            if run.seed in seeds:
                raise ConfigError(
                    f"arm {run.arm} at {run.learning_rate:g} with seed {run.seed} is there twice: "
                    "give folders of different experiments to different reports"
                )
            seeds[run.seed] = run

    @property
    def arms(self) -> tuple[str, ...]:
        """Their names, the ones with most own groups first."""

        def key(arm: str) -> tuple[int, str]:
            local = _LOCAL.match(arm)
            return -int(local[0]) if local else 0, arm

        return tuple(sorted({arm for arm, _ in self._runs}, key=key))

    def rates(self, arm: str) -> tuple[float, ...]:
        """Learning rates of an arm, lowest first. Raises ConfigError for an arm that is not there."""
        rates = sorted(rate for name, rate in self._runs if name == arm)
        if not rates:
            raise ConfigError(f"there is no arm {arm!r}: there are {', '.join(self.arms) or 'none'}")
        return tuple(rates)

    def of(self, arm: str, rate: float) -> dict[int, RunMeasures]:
        """Runs by seed, lowest seed first."""
        return dict(sorted(self._runs[arm, rate].items()))

    def values(self, arm: str, rate: float, value: Value) -> dict[int, float]:
        """A measure by seed, where it was measured."""
        found = {seed: value(run) for seed, run in self.of(arm, rate).items()}
        return {seed: number for seed, number in found.items() if number is not None}

    def best_rate(self, arm: str, value: Value = PRIMARY.value) -> float:
        """The rate with the highest interquartile mean; the lowest of all where nothing was measured."""

        def height(rate: float) -> float:
            values = list(self.values(arm, rate, value).values())
            return iqm(values) if values else float("-inf")

        return max(self.rates(arm), key=height)


def parse_contrast(text: str) -> tuple[str, str]:
    """`ARM vs BASE`. Raises ConfigError."""
    arm, separator, base = text.partition(_BETWEEN)
    if not separator or not arm.strip() or not base.strip():
        raise ConfigError(f"--contrast: expected 'ARM vs BASE', as '4/4 vs 8/0', got {text!r}")
    return arm.strip(), base.strip()


def compare(runs: Runs, pairs: Sequence[tuple[str, str]], measure: Measure) -> list[Contrast]:
    """The planned contrasts, (arm, base), of one measure, adjusted together.

    Raises ConfigError for an arm that is not there, or two without a common seed.
    """
    found = [_contrast(runs, arm, base, measure) for arm, base in pairs]
    adjusted = holm([contrast.test.p for contrast in found])
    return [replace(contrast, holm_p=p) for contrast, p in zip(found, adjusted, strict=True)]


def _contrast(runs: Runs, arm: str, base: str, measure: Measure) -> Contrast:
    arm_rate, base_rate = (runs.best_rate(name, measure.value) for name in (arm, base))
    mine = runs.values(arm, arm_rate, measure.value)
    theirs = runs.values(base, base_rate, measure.value)
    common = [seed for seed in mine if seed in theirs]
    if not common:
        raise ConfigError(
            f"{measure.name}: {arm} (seeds {_list(mine)}) and {base} (seeds {_list(theirs)}) have no seed in "
            "common to compare"
        )
    differences = [mine[seed] - theirs[seed] for seed in common]
    base_value = iqm([theirs[seed] for seed in common])
    test = sign_flip(differences)
    return Contrast(
        arm=arm,
        arm_rate=arm_rate,
        base=base,
        base_rate=base_rate,
        measure=measure,
        difference=estimate(differences),
        gain=iqm([mine[seed] for seed in common]) / base_value - 1 if base_value else None,
        test=test,
        holm_p=test.p,
    )


def _list(seeds: Iterable[int]) -> str:
    return ", ".join(map(str, seeds)) or "none"
