"""What `start` checks before it imports anything heavy: manifest, home, engine, identity, model. Each mistake
is one line and leaves everything on disk as it was.
"""

from __future__ import annotations

import os

from swarmd.cli.planning import plan_for
from swarmd.cli.progress import DownloadProgress
from swarmd.config import Config
from swarmd.errors import ConfigError, HomeInUseError
from swarmd.generation.vllm_choice import find_vllm, why_not
from swarmd.identity import Identity
from swarmd.models.catalogue import CATALOGUE
from swarmd.models.folder_check import check_folder, has_chat_template
from swarmd.models.placement import Placement
from swarmd.models.resolve import ModelFolder, cached_folder, resolve
from swarmd.models.shape import read_shape
from swarmd.paths import Home
from swarmd.tasks.manifest import Manifest

__all__ = ["check_before_start"]


def check_before_start(config: Config, home: Home) -> Placement:
    """Raise the error that a node with this configuration would stop with, if there is one.

    Returns where its model is to be computed.

    Raises ConfigError (manifest, group size, engine, model, device), MemoryShortError, HomeInUseError,
    HomeError or IdentityFileError. Makes the folders of the home. A model that has to be downloaded is
    downloaded here.
    """
    manifest = Manifest.load(config.swarm.manifest) if config.swarm.manifest else None
    running = home.running_pid()
    if running is not None:
        raise HomeInUseError(home.in_use_message(running))
    if config.generation.engine == "vllm" and (fault := why_not(find_vllm())) is not None:
        raise ConfigError(f"generation.engine is vllm, but {fault}: use auto or transformers")
    _check_before_download(config, manifest)
    with DownloadProgress() as progress:
        model = resolve(config.model.name, progress.show)
    check_folder(model.path)
    manifest = manifest or Manifest.built_in(model.manifest_hint)
    _check_against_manifest(config, manifest)
    _check_chat_template(model, manifest)
    placement = plan_for(config, manifest, model.name, read_shape(model.path))
    home.prepare()
    # A link that leads nowhere is there, too: a new identity must not be written through it.
    if os.path.lexists(home.identity_key):
        Identity.load(home.identity_key)
    return placement


def _check_before_download(config: Config, manifest: Manifest | None) -> None:
    """A known model that does not fit here is refused before gigabytes of it are fetched."""
    known = CATALOGUE.get(config.model.name)
    if known is None or known.shape is None or known.hub_id is None or cached_folder(known.hub_id):
        return
    plan_for(config, manifest or Manifest.load(known.manifest), known.name, known.shape)


def _check_chat_template(model: ModelFolder, manifest: Manifest) -> None:
    if manifest.prompt.style == "chat" and not has_chat_template(model.path):
        raise ConfigError(
            f"swarm {manifest.name!r} asks in chat style, and model {model.name} has no chat template: "
            "choose an instruct model, or a swarm of plain style (`swarmd swarm new`)"
        )


def _check_against_manifest(config: Config, manifest: Manifest) -> None:
    low, high, size = manifest.group_size_min, manifest.group_size_max, config.rollout.group_size
    if not low <= size <= high:
        raise ConfigError(
            f"rollout.group_size must be between {low} and {high} in swarm {manifest.name!r}, got {size}"
        )
    if config.rollout.max_new_tokens > manifest.max_new_tokens:
        raise ConfigError(
            f"rollout.max_new_tokens must be at most {manifest.max_new_tokens} in swarm {manifest.name!r}, "
            f"got {config.rollout.max_new_tokens}: peers would refuse longer completions"
        )
