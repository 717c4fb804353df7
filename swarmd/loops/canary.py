"""The canary: log-probabilities of one fixed text, as the trainer finds them and as the generator does,
under the same policy version. Each process computes its own; here numbers are compared, and a
generator that is off is told from one that is right. What is done about it, `weights` decides.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["TOLERANCES", "Canary", "CanaryCheck", "difference"]

TOLERANCES = {"float32": 1e-3, "bfloat16": 0.05, "float16": 0.05}
"""Nats, by the format that the generator computes in; that of the trainer where it is the coarser one."""


@dataclass(frozen=True)
class CanaryCheck:
    """One comparison."""

    version: int
    difference: float
    """Nats, as `difference` has it; infinite when a log-probability was not finite."""
    tolerance: float
    checked_at: float
    """Wall clock, seconds since the Unix epoch."""
    is_trainer_finite: bool

    @property
    def is_good(self) -> bool:
        """Whether both hold the same policy."""
        return self.difference <= self.tolerance

    def __str__(self) -> str:
        if not self.is_trainer_finite:
            return f"the trainer's log-probabilities of version {self.version} are not finite"
        if math.isinf(self.difference):
            return f"the generator's log-probabilities of version {self.version} are not finite"
        return (
            f"generator and trainer differ by {self.difference:.3g} nats at version {self.version} "
            f"(tolerance {self.tolerance:g})"
        )


@dataclass
class Canary:
    """What the trainer found, by version, and how the last comparison came out."""

    every_versions: int = 0
    """0: nothing is compared."""
    tolerance: float = 0.0
    """Nats; 0: that of the generator's format."""
    last: CanaryCheck | None = None
    failures: int = 0
    """Comparisons in a row that failed."""
    total_failures: int = 0
    not_finite: int = 0
    """Sampling calls in a row in which a log-probability was not finite."""
    is_suspect: bool = False
    """Whether the last of them has still to be answered, by the weights loop."""
    trainer_starts: int = 0
    _trainer_dtype: str = "float32"
    _readings: dict[int, tuple[float, ...]] = field(default_factory=dict)
    _is_fresh: bool = True
    """Whether a process was started since the last comparison."""

    def note_trainer_start(self, version: int, logprobs_T: tuple[float, ...] | None, dtype: str) -> None:
        """A trainer has started at `version`, and computes in `dtype`. What an earlier one found is of no
        more use.
        """
        self.trainer_starts += 1
        self._trainer_dtype = dtype
        self._readings = {}
        self.note_reading(version, logprobs_T)
        self._is_fresh = True

    def note_generator_start(self) -> None:
        """A generator has started, with weights that are not the policy's yet."""
        self._is_fresh = True

    def note_sampled(self, *, is_finite: bool) -> None:
        """A sampling call is done. One with numbers that are not finite makes a comparison due."""
        self.not_finite = 0 if is_finite else self.not_finite + 1
        self.is_suspect = self.is_suspect or not is_finite
        self._is_fresh = self._is_fresh or not is_finite

    def note_reading(self, version: int, logprobs_T: tuple[float, ...] | None) -> None:
        """What the trainer found under `version`, where it was asked."""
        if logprobs_T is not None:
            self._readings[version] = logprobs_T

    def reading(self, version: int) -> tuple[float, ...] | None:
        """What the trainer found under `version`; None when it was not asked."""
        return self._readings.get(version)

    def is_due(self, version: int) -> bool:
        """Whether `version` is to be compared: after a start, after a failure, and every so many versions."""
        if not self.every_versions:
            return False
        if self._is_fresh or self.failures or self.last is None:
            return True
        return not self.last.version <= version < self.last.version + self.every_versions

    def compare(
        self, version: int, expected_T: Sequence[float], found_T: Sequence[float], dtype: str
    ) -> CanaryCheck:
        """Compare trainer and generator, which computes in `dtype`, and remember how it came out."""
        dtype = self._trainer_dtype if dtype == "float32" else dtype
        check = CanaryCheck(
            version=version,
            difference=difference(expected_T, found_T, dtype),
            tolerance=self.tolerance or TOLERANCES[dtype],
            checked_at=time.time(),
            is_trainer_finite=all(map(math.isfinite, expected_T)),
        )
        self.last, self._is_fresh = check, False
        self._readings = {known: values for known, values in self._readings.items() if known >= version}
        if check.is_good:
            self.failures = 0
        else:
            self.failures += 1
            self.total_failures += 1
        return check


def difference(expected_T: Sequence[float], found_T: Sequence[float], dtype: str) -> float:
    """How far two readings of the same tokens are apart, nats; infinite when a number is not finite.

    float32: the largest absolute difference. In 16-bit formats the mean of them: there a single logit
    is rounded by more than the tolerance, and that says nothing about the weights.
    """
    if len(expected_T) != len(found_T) or not all(map(math.isfinite, (*expected_T, *found_T))):
        return math.inf
    off_T = [abs(expected - found) for expected, found in zip(expected_T, found_T, strict=True)]
    return max(off_T) if dtype == "float32" else math.fsum(off_T) / len(off_T)
