"""What one simulated swarm is: its nodes, its network, how long it goes on. Plain frozen data that says
everything there is to say: equal plans give equal results.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from swarmd.config import Config
from swarmd.models.resolve import resolve
from swarmd.tasks.manifest import Manifest

__all__ = ["HeldOut", "NetworkPlan", "NodePlan", "SwarmPlan", "config_sections"]

Kind = Literal["honest", "frozen"]
Budget = Literal["rounds", "groups", "updates"]


class NodePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One node."""

    kind: Kind = "honest"
    """honest: learns and shares. frozen: shares, and never learns."""
    model: str = ""
    """A known name or a folder. Empty: the model of the swarm."""
    speed: float = 1.0
    """Rounds it does while a node of speed 1 does one."""
    joins: float = 0.0
    """The round of a node of speed 1 at which it joins."""
    tasks: dict[str, float] = {}
    """Datasets that it asks about, with their weight. Empty: all of the manifest, weighted as there."""


class NetworkPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How messages travel. The unit is the time that a round takes at speed 1."""

    delay: tuple[float, float] = (0.0, 0.0)
    """A message takes between the first and the second."""
    loss: float = 0.0
    """Probability that a message does not reach one peer."""


class HeldOut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Evaluation on held-out tasks: the same ones for all nodes, arms and seeds."""

    every: int = 10
    """Rounds between two evaluations. The first is before any training. 0: never."""
    tasks: int = 72
    temperature: float = 1.0
    """0: greedy. 1 measures what training maximises, and moves before the most likely answer does."""


class SwarmPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole swarm."""

    nodes: tuple[NodePlan, ...]
    rounds: int
    seed: int
    config: dict[str, Any] = {}
    """Sections of the node configuration, which holds for every node: I, J, sampling, training."""
    network: NetworkPlan = NetworkPlan()
    held_out: HeldOut = HeldOut()
    redraw: int = 0
    """Own groups without signal are asked again, with other questions, until the round has its own groups
    with signal or this many times as many were sampled (dynamic sampling). 0: they are trained on."""
    replay_own: bool = False
    """External groups are the node's own of earlier rounds; nothing is heard from peers."""
    budget: Budget = "rounds"
    """rounds: a node of speed 1 does `rounds` of them. groups: a node goes on until it has sampled as many
    own groups as full batches of `rounds` rounds hold. updates: until it has taken `rounds` optimizer
    steps."""

    def node_config(self) -> Config:
        """The configuration of its nodes."""
        return Config.model_validate(self.config)

    def manifest(self) -> Manifest:
        """Its tasks. Raises ConfigError for a manifest or a model that does not exist."""
        config = self.node_config()
        model = resolve(config.model.name)
        for node in self.nodes:
            resolve(node.model or config.model.name)
        return Manifest.chosen(config.swarm.manifest, model.manifest_hint)


def config_sections(config: Config) -> Mapping[str, Any]:
    """What `SwarmPlan.config` holds of a configuration: all that is not at its default."""
    sections: Mapping[str, Any] = config.model_dump(exclude_defaults=True)
    return sections
