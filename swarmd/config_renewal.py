"""What of a running node's configuration can change: the keys that are read again each time they are
used, or that a room takes over. Everything else has shaped a process, a buffer or a connection, and
waits for the next start.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarmd.config import Config, PeersSection, ScreensSection
from swarmd.config_sources import known_keys

_NOT_OF_PEERS = {"exempt_networks"}
RENEWABLE = frozenset(
    {
        "monitor.log_level",
        "monitor.history_rounds",
        "schedule.checkpoint_every_rounds",
        "schedule.eval_every_rounds",
        "swarm.join",
        *(f"peers.{field}" for field in PeersSection.model_fields if field not in _NOT_OF_PEERS),
        *(f"screens.{field}" for field in ScreensSection.model_fields),
    }
)
"""Keys, section.field, that a reload takes over."""


@dataclass(frozen=True)
class Renewed:
    """The outcome of a reload."""

    config: Config
    """The old configuration with the new values of the renewable keys."""
    taken: tuple[str, ...]
    """Keys that changed and are in force now, with their values, for people."""
    left: tuple[str, ...]
    """Keys that changed and take effect at the next start."""

    @classmethod
    def of(cls, old: Config, new: Config) -> Renewed:
        """Compare what is in force with what was read again."""
        changed = [key for key in known_keys() if _value(old, key) != _value(new, key)]
        taken = [key for key in changed if key in RENEWABLE]
        sections: dict[str, dict[str, object]] = {}
        for key in taken:
            section, field = key.split(".")
            sections.setdefault(section, {})[field] = _value(new, key)
        config = old.model_copy(
            update={name: getattr(old, name).model_copy(update=fields) for name, fields in sections.items()}
        )
        return cls(
            config,
            tuple(f"{key} = {_value(new, key)}" for key in taken),
            tuple(key for key in changed if key not in RENEWABLE),
        )


def _value(config: Config, key: str) -> object:
    section, field = key.split(".")
    return getattr(getattr(config, section), field)
