"""Arms of an experiment, as they are written: `I/J`, options behind `+`, settings behind `:`.

8/0                  eight own groups a round, none of peers
8/0+redraw           own groups without signal are asked again, up to four times as many in all
4+4self              four own groups, and four of the node's own of earlier rounds
4/4+frozen           the peers never learn: as many others, which only share
4/4+lag8             what peers share arrives eight rounds later
4/4+groups           goes on until as many own groups were sampled as R rounds of 8/0 would
8/0+updates          goes on until R optimizer steps were taken
4/4:training.external=mask,replay.max_uses=2
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec

from swarmd.errors import ConfigError
from swarmd.simulate.plan import Budget, NodePlan, SwarmPlan

__all__ = ["Arm", "parse_arm", "parse_arms"]

REDRAW = 4
"""How many times as many own groups `redraw` samples at most."""

_SHAPE = re.compile(r"(?P<local>\d{1,3})(?:/(?P<external>\d{1,3})|\+(?P<replayed>\d{1,3})self)")
_START = re.compile(r"\d")
_OPTION = re.compile(r"redraw|frozen|groups|updates|lag(\d{1,5})")


@dataclass(frozen=True)
class Arm:
    """One arm: how a swarm departs from the others of the experiment."""

    name: str
    """As it was written."""
    local: int
    external: int
    replay_own: bool = False
    is_redrawn: bool = False
    has_frozen_peers: bool = False
    lag: int = 0
    budget: Budget = "rounds"
    settings: Mapping[str, str] = field(default_factory=dict)
    """Keys of the configuration."""

    @property
    def slug(self) -> str:
        """The name in a form that is good for a file."""
        return re.sub(r"[^A-Za-z0-9.=_]+", "-", self.name)

    @property
    def assignments(self) -> list[str]:
        """All that it sets, as `--set` takes it."""
        return [
            f"replay.local_groups={self.local}",
            f"replay.external_groups={self.external}",
            *(f"{key}={value}" for key, value in self.settings.items()),
        ]

    def of(self, swarm: SwarmPlan) -> SwarmPlan:
        """The swarm with this arm's options; the configuration is seen to elsewhere."""
        nodes = swarm.nodes
        if self.has_frozen_peers:
            # As many as each node has peers otherwise.
            nodes += (NodePlan(kind="frozen"),) * (len(nodes) - 1)
        delay = (swarm.network.delay[0] + self.lag, swarm.network.delay[1] + self.lag)
        return msgspec.structs.replace(
            swarm,
            nodes=nodes,
            network=msgspec.structs.replace(swarm.network, delay=delay),
            redraw=REDRAW if self.is_redrawn else swarm.redraw,
            replay_own=self.replay_own or swarm.replay_own,
            learners_share=swarm.learners_share and not (self.replay_own or self.has_frozen_peers),
            budget=self.budget if self.budget != "rounds" else swarm.budget,
        )


def parse_arms(text: str) -> tuple[Arm, ...]:
    """Arms with commas between them; what follows a comma and is no arm is one more setting of the last.

    Raises ConfigError.
    """
    parts: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if parts and ":" in parts[-1] and not _START.match(part):
            parts[-1] += f",{part}"
        else:
            parts.append(part)
    arms = tuple(parse_arm(part) for part in parts)
    names = [arm.slug for arm in arms]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"--arms: {twice} is there twice")
    return arms


def parse_arm(text: str) -> Arm:
    """One arm. Raises ConfigError."""
    head, _, tail = text.partition(":")
    shape = _SHAPE.match(head)
    if shape is None:
        raise ConfigError(f"--arms: {text!r} is no arm: expected I/J or I+Jself, as 4/4 or 4+4self")
    local, external = int(shape["local"]), int(shape["external"] or shape["replayed"] or 0)
    rest = head[shape.end() :]
    options = rest.split("+")[1:] if rest.startswith("+") else []
    if (rest and not options) or local + external == 0:
        raise ConfigError(f"--arms: {text!r} is no arm: {rest or 'no group'!r} cannot be trained on")
    arm = Arm(text, local, external, shape["replayed"] is not None, settings=_settings(text, tail))
    for option in options:
        arm = _with_option(arm, option)
    return arm


def _with_option(arm: Arm, option: str) -> Arm:
    found = _OPTION.fullmatch(option)
    if found is None:
        raise ConfigError(
            f"--arms: {arm.name!r}: no option {option!r}; there are redraw, frozen, lagN, groups and updates"
        )
    if found[1] is not None:
        return replace(arm, lag=int(found[1]))
    if option == "groups":
        return replace(arm, budget="groups")
    if option == "updates":
        return replace(arm, budget="updates")
    return replace(arm, is_redrawn=True) if option == "redraw" else replace(arm, has_frozen_peers=True)


def _settings(text: str, tail: str) -> dict[str, str]:
    settings: dict[str, str] = {}
    for assignment in filter(None, tail.split(",")):
        key, separator, value = assignment.partition("=")
        if not separator:
            raise ConfigError(f"--arms: {text!r}: expected SECTION.KEY=VALUE, got {assignment!r}")
        settings[key.strip()] = value.strip()
    return settings
