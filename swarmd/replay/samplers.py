"""The sampling rules that come with swarmd, by the names of `replay.sampler`.

docs/sampling.md says what each is for and how to write another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from swarmd.replay.rules import Candidate, Draw, Rule, import_rule, kind, weighted_order

__all__ = ["SAMPLERS", "load_rule"]

MOST_VERSIONS_BEHIND = 8
"""`advantage` takes no older group."""
UNKNOWN_USEFULNESS = 0.5
"""Of an author that no group was counted of."""


def uniform(draw: Draw) -> Sequence[Candidate]:
    """Each with the same chance (arXiv 2509.08721, section 3)."""
    return draw.generator.sample(draw.candidates, len(draw.candidates))


def advantage(draw: Draw) -> Sequence[Candidate]:
    """By chance in proportion to the mean absolute advantage, none that is too old.

    After the prioritised replay of arXiv 2606.04560, which draws single completions by |A| and evicts
    those older than some training steps. Here the unit is the group, and its age is counted in policy
    versions of its author.
    """
    fresh = [c for c in draw.candidates if c.versions_behind <= MOST_VERSIONS_BEHIND]
    return weighted_order(fresh, lambda candidate: candidate.advantage, draw.generator)


def learnable(draw: Draw) -> Sequence[Candidate]:
    """By chance in proportion to p (1 - p), p this node's own recent success with the kind of task: most
    often what it gets right about half of the time. A kind it has not met counts as one of those.
    """
    return weighted_order(draw.candidates, lambda c: c.own_success * (1.0 - c.own_success), draw.generator)


def fresh(draw: Draw) -> Sequence[Candidate]:
    """The newest first; those of one age in random order."""
    shuffled = draw.generator.sample(draw.candidates, len(draw.candidates))
    return sorted(shuffled, key=lambda candidate: candidate.age_seconds)


def mixed(draw: Draw) -> Sequence[Candidate]:
    """First what has the kind of task of an own group in the batch, and merged with it: the mean and the
    deviation of rewards are then over both. The others follow, all in random order.

    Own failures then teach something although none of them was right, since the peer's show that it can
    be done (the idea of a joint mean of HACPO, arXiv 2603.02604). There, all agents answer the same
    question; here nodes have questions of their own, and only the kind of task is the same.
    """
    shuffled = draw.generator.sample(draw.candidates, len(draw.candidates))
    partners: dict[tuple[str, str], list[int]] = {}
    for place, group in enumerate(draw.own):
        partners.setdefault(kind(group), []).append(place)
    merged, alone = [], []
    for candidate in shuffled:
        places = partners.get(kind(candidate.group))
        if places is None:
            alone.append(candidate)
            continue
        # In turn, so that no own group meets many peers' groups while another of its kind meets none.
        places.append(places.pop(0))
        merged.append(candidate.merged(draw.own[places[-1]]))
    return merged + alone


def reputation(draw: Draw) -> Sequence[Candidate]:
    """By chance in proportion to how many of the author's groups had something to teach."""

    def weight(candidate: Candidate) -> float:
        usefulness = candidate.author_usefulness
        return UNKNOWN_USEFULNESS if usefulness is None else usefulness

    return weighted_order(draw.candidates, weight, draw.generator)


SAMPLERS: Mapping[str, Rule] = {
    "uniform": uniform,
    "advantage": advantage,
    "learnable": learnable,
    "fresh": fresh,
    "mixed": mixed,
    "reputation": reputation,
}


def load_rule(name: str) -> Rule:
    """The rule that `replay.sampler` names, one of these or MODULE:FUNCTION. Raises ConfigError."""
    return SAMPLERS[name] if name in SAMPLERS else import_rule(name)
