"""An experiment as a TOML file, for what no flag can say: swarms of unlike nodes.

rounds = 100
arms = ["8/0", "4/4", "4/4:training.external=mask"]

[config.training]
learning_rate = 1e-4

[[nodes]]
count = 7

[[nodes]]
kind = "payload"
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from swarmd.errors import ConfigError
from swarmd.simulate.plan import HeldOut, NetworkPlan, NodePlan

__all__ = ["ExperimentFile", "NodeEntry", "read_experiment_file"]

Value = bool | int | float | str | list[str]


class NodeEntry(NodePlan, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One `[[nodes]]` table: so many nodes of a kind."""

    count: int = 1

    def plans(self) -> tuple[NodePlan, ...]:
        """Its nodes, each for itself."""
        fields = {name: getattr(self, name) for name in NodePlan.__struct_fields__}
        return (NodePlan(**fields),) * self.count


class ExperimentFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file. Each key but `nodes`, `network`, `held_out` and `config` is the flag of its name."""

    nodes: tuple[NodeEntry, ...] = (NodeEntry(count=8),)
    rounds: int = 50
    model: str = "tiny"
    arms: tuple[str, ...] = ("8/0", "6/2", "4/4", "2/6")
    learning_rates: tuple[float, ...] = ()
    seeds: str = "1"
    network: NetworkPlan = NetworkPlan()
    held_out: HeldOut = HeldOut()
    config: dict[str, dict[str, Value]] = {}
    """Sections of the node configuration, for all nodes and arms."""

    def node_plans(self) -> tuple[NodePlan, ...]:
        """All nodes."""
        return tuple(plan for entry in self.nodes for plan in entry.plans())

    def assignments(self) -> tuple[str, ...]:
        """`config`, as `--set` takes it."""
        return tuple(
            f"{section}.{key}={_text(value)}"
            for section, table in self.config.items()
            for key, value in table.items()
        )


def read_experiment_file(path: Path) -> ExperimentFile:
    """Raises ConfigError in one line."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        return msgspec.convert(tables, ExperimentFile)
    except OSError as error:
        raise ConfigError(f"--config {path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # What TOML, UTF-8 and msgspec raise.
        reason = str(error).replace("`", "").replace("$.", "")
        raise ConfigError(f"--config {path}: {reason}") from error


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, list) else str(value)
