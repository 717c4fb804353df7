"""Sampling rules. A rule says which peers' groups to learn from; this is what it is asked, and what it
may answer.

A rule is a plain function of a `Draw`, without state of its own. All chance comes from the draw's
generator, so that the same draw has the same answer. The rules that come with swarmd are in `samplers`;
a researcher's own is loaded by name, from the operator's configuration and from nowhere else.
"""

from __future__ import annotations

import importlib
import math
import os
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from swarmd.errors import ConfigError, SamplingRuleError
from swarmd.types import RolloutGroup

__all__ = ["Candidate", "Draw", "Rule", "answer", "import_rule", "kind", "weighted_order"]


@dataclass(frozen=True, eq=False, slots=True)
class Candidate:
    """An external group that may be drawn, and what this node knows about it."""

    group: RolloutGroup
    """Task, completions, rewards (this node's own), author, and the author's policy version."""
    age_seconds: float = 0.0
    """Since its author made it, within the limits on clocks."""
    uses: int = 0
    """How often it was drawn before."""
    versions_behind: int = 0
    """Policy versions behind the newest of its author that is held."""
    own_success: float = 0.5
    """Mean reward of this node's own recent completions of the same kind of task, with a prior; 0.5 where
    there are none."""
    author_usefulness: float | None = None
    """Share of the author's valid groups whose rewards differ; None where nothing was counted."""
    merged_with: RolloutGroup | None = None
    """An own group of the draw with which it is to share one mean. See `merged`."""

    @property
    def advantage(self) -> float:
        """Mean absolute advantage of its completions, rewards divided by their standard deviation: 2
        sqrt(p (1 - p)) for strict rewards of which a share p is 1. From 0 to 1.
        """
        if not self.group.has_signal:
            return 0.0
        mean = self.group.mean_reward
        distances_G = [abs(reward - mean) for reward in self.group.rewards_G]
        return sum(distances_G) / math.sqrt(len(distances_G) * sum(one * one for one in distances_G))

    def merged(self, own: RolloutGroup) -> Candidate:
        """The same candidate, sharing mean and deviation of rewards with an own group in the batch."""
        return replace(self, merged_with=own)


@dataclass(frozen=True)
class Draw:
    """What a rule is asked: which of these to take, in order of preference."""

    candidates: tuple[Candidate, ...]
    """All external groups that may be drawn, each author's in the order in which they came. Never none."""
    count: int
    """How many are wanted (J). The first so many of the answer are taken, less what a screen holds back."""
    own: tuple[RolloutGroup, ...]
    """Own groups of the batch that is being made, oldest first."""
    generator: random.Random
    """The only source of chance."""


Rule = Callable[[Draw], Sequence[Candidate]]
"""Returns candidates in order of preference. One that it leaves out is not taken: an own group stands in."""


def kind(group: RolloutGroup) -> tuple[str, str]:
    """The kind of a group's task: dataset and configuration, so that difficulty is the same."""
    return (group.task.dataset, group.task.config_digest)


def weighted_order(
    candidates: Sequence[Candidate], weight: Callable[[Candidate], float], generator: random.Random
) -> list[Candidate]:
    """An order as drawing one after the other without replacement gives it, by chance in proportion to
    weight (Efraimidis and Spirakis 2006: sort by u^(1/w)). Those of weight 0 come last, in random order.
    """

    def key(candidate: Candidate) -> tuple[bool, float]:
        u, w = generator.random(), weight(candidate)
        return (w > 0.0, u ** (1.0 / w) if w > 0.0 else u)

    return sorted(candidates, key=key, reverse=True)


def answer(rule: Rule, draw: Draw) -> list[Candidate]:
    """What `rule` answers, checked: a rule may be anybody's. Raises SamplingRuleError."""
    name = f"{getattr(rule, '__module__', '?')}:{getattr(rule, '__name__', rule)}"
    try:
        chosen = list(rule(draw))
    except Exception as error:
        raise SamplingRuleError(
            f"the sampling rule {name} failed: {type(error).__name__}: {error}"
        ) from error
    known = {id(candidate.group) for candidate in draw.candidates}
    own = {id(group) for group in draw.own}
    seen: set[int] = set()
    for candidate in chosen:
        if not isinstance(candidate, Candidate) or id(candidate.group) not in known:
            raise SamplingRuleError(
                f"the sampling rule {name} must return candidates of the draw, got {candidate!r:.80}"
            )
        if id(candidate.group) in seen:
            raise SamplingRuleError(f"the sampling rule {name} returned a candidate twice")
        if candidate.merged_with is not None and id(candidate.merged_with) not in own:
            raise SamplingRuleError(
                f"the sampling rule {name} merged a candidate with a group that is not of the draw"
            )
        seen.add(id(candidate.group))
    return chosen


def import_rule(name: str) -> Rule:
    """The function that MODULE:FUNCTION names. The module is looked for among what is installed, and then
    in the working directory. Raises ConfigError.
    """
    module_name, _, function_name = name.partition(":")
    here = os.getcwd()
    # At the end: no file of this folder can take the place of an installed module.
    sys.path.append(here)
    try:
        module: Any = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError(
            f"replay.sampler: module {module_name} cannot be imported "
            f"({type(error).__name__}: {error}); it must be installed, on PYTHONPATH or in {here}"
        ) from error
    finally:
        sys.path.remove(here)
    rule = getattr(module, function_name, None)
    if not callable(rule):
        raise ConfigError(f"replay.sampler: module {module_name} has no function {function_name}")
    found: Rule = rule
    return found
