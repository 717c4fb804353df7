"""What one simulated swarm is: its nodes, its network, how long it goes on. Plain frozen data that says
everything there is to say: equal plans give equal results.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from swarmd.config import Config
from swarmd.errors import ConfigError
from swarmd.models.resolve import resolve
from swarmd.replay.samplers import load_rule
from swarmd.tasks.datasets import nearest
from swarmd.tasks.manifest import Manifest
from swarmd.tasks.source import held_out_tasks

__all__ = ["HeldOut", "NetworkPlan", "NodePlan", "SwarmPlan", "config_sections"]

Kind = Literal["honest", "silent", "frozen", "payload", "noise", "garbage", "copier", "forger"]
Budget = Literal["rounds", "groups", "updates"]


class NodePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One node."""

    kind: Kind = "honest"
    """honest: learns and shares. silent: learns, and shares nothing. frozen: shares, and never learns.

    The rest never learn either. payload: what it shares has a sentence around each right answer. noise: its
    wrong answers are random text. garbage: all are. copier: shares others' groups as its own. forger: shares
    its own as another node's."""
    model: str = ""
    """A known name or a folder. Empty: the model of the swarm."""
    speed: float = 1.0
    """Rounds it does while a node of speed 1 does one."""
    joins: float = 0.0
    """The round of a node of speed 1 at which it joins."""
    tasks: dict[str, float] = {}
    """Datasets that it asks about, with their weight. Empty: all of the manifest, weighted as there."""

    @property
    def learns(self) -> bool:
        """Whether it trains on anything."""
        return self.kind in ("honest", "silent")

    def check(self, manifest: Manifest) -> None:
        """Raises ConfigError when there cannot be such a node in a swarm of this manifest."""
        if not (0 < self.speed <= 1000 and self.joins >= 0):
            raise ConfigError(f"nodes: speed must be above 0 and joins not negative, got {self}")
        for dataset, weight in self.tasks.items():
            if dataset not in manifest.task_digests:
                raise ConfigError(f"nodes: no dataset {dataset!r}{nearest(dataset, manifest.task_digests)}")
            if not weight > 0:
                raise ConfigError(f"nodes: the weight of {dataset} must be above 0, got {weight}")
        if self.model:
            resolve(self.model)


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
    """External groups are the node's own of earlier rounds, as if they were heard from a peer."""
    learners_share: bool = True
    """False: of what nodes that learn sample, nothing is published."""
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
        return Manifest.chosen(config.swarm.manifest, resolve(config.model.name).manifest_hint)

    def check(self) -> None:
        """Raises ConfigError when it cannot be simulated."""
        manifest = self.manifest()
        for node in self.nodes:
            node.check(manifest)
        if not any(node.learns for node in self.nodes):
            raise ConfigError("nodes: none of them learns")
        low, high = self.network.delay
        if not 0 <= low <= high or not 0 <= self.network.loss < 1:
            raise ConfigError(f"network: delay must be 0 <= from <= to, and loss 0 to 1, got {self.network}")
        if self.rounds < 1 or self.held_out.every < 0 or self.held_out.tasks < 1:
            raise ConfigError("rounds and held_out.tasks must be at least 1, and held_out.every not negative")
        held_out_tasks(manifest, self.held_out.tasks)
        load_rule(self.node_config().replay.sampler)


def config_sections(config: Config) -> Mapping[str, Any]:
    """What `SwarmPlan.config` holds of a configuration: all that is not at its default."""
    sections: Mapping[str, Any] = config.model_dump(exclude_defaults=True)
    return sections
