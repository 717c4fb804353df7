"""What `start` checks before it imports anything heavy: manifest, home, identity, model. Each mistake
is one line and leaves everything on disk as it was.
"""

from __future__ import annotations

from swarmd.config import Config
from swarmd.errors import ConfigError, HomeInUseError
from swarmd.identity import Identity
from swarmd.models.resolve import resolve
from swarmd.paths import Home
from swarmd.tasks.manifest import Manifest

__all__ = ["check_before_start"]


def check_before_start(config: Config, home: Home) -> None:
    """Raise the error that a node with this configuration would stop with, if there is one.

    Raises ConfigError (manifest, group size, model), HomeInUseError, HomeError or IdentityFileError.
    Makes the folders of the home. A model that has to be downloaded is downloaded here.
    """
    manifest = Manifest.load(config.swarm.manifest) if config.swarm.manifest else None
    running = home.running_pid()
    if running is not None:
        raise HomeInUseError(home.in_use_message(running))
    model = resolve(config.model.name)
    _check_group_size(config, manifest or Manifest.load(model.manifest_hint))
    home.prepare()
    if home.identity_key.exists():
        Identity.load(home.identity_key)


def _check_group_size(config: Config, manifest: Manifest) -> None:
    low, high, size = manifest.group_size_min, manifest.group_size_max, config.rollout.group_size
    if not low <= size <= high:
        raise ConfigError(
            f"rollout.group_size must be between {low} and {high} in swarm {manifest.name!r}, got {size}"
        )
