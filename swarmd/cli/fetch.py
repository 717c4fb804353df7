"""`swarmd swarm fetch`: the manifest of a swarm of which only the id and an address are known."""

from __future__ import annotations

import asyncio
import re
import tempfile
from pathlib import Path

from swarmd.config_checks import join_address_problem
from swarmd.errors import ConfigError, NetworkError
from swarmd.gossip.libp2p import Libp2pSettings, Libp2pTransport
from swarmd.gossip.records import fetch_manifests, record_check
from swarmd.identity import Identity, verify
from swarmd.tasks.manifest import Manifest

__all__ = ["fetch_manifest"]

_SWARM_ID = re.compile(r"[0-9a-f]{64}")
_PAUSE_SECONDS = 0.5


def fetch_manifest(swarm_id: str, join: tuple[str, ...], timeout_seconds: float) -> Manifest:
    """Ask the peers at these addresses, and those that they know, as a peer of no swarm.

    What they say is believed only when its digest is the id. Raises ConfigError for an id or an address
    that is none, and NetworkError when nobody had it in time.
    """
    if not _SWARM_ID.fullmatch(swarm_id):
        raise ConfigError(f"a swarm id has 64 hexadecimal digits, got {swarm_id!r}: see `swarmd swarm id`")
    for address in join:
        problem = join_address_problem(address)
        if problem:
            raise ConfigError(f"--join {problem}")
    return asyncio.run(_fetch(swarm_id, join, timeout_seconds))


async def _fetch(swarm_id: str, join: tuple[str, ...], timeout_seconds: float) -> Manifest:
    # In /tmp: the paths of Unix sockets have to be short.
    with tempfile.TemporaryDirectory(prefix="swarmd-", dir="/tmp") as folder:
        home = Path(folder)
        identity = Identity.create(home / "key")
        settings = Libp2pSettings(home / "key", identity.peer_id, home, ("/ip4/127.0.0.1/tcp/0",), join)
        async with Libp2pTransport(settings, record_check(verify)) as transport:
            try:
                async with asyncio.timeout(timeout_seconds):
                    return await _found(transport, swarm_id)
            except TimeoutError as error:
                unreachable = [each for each in transport.state.bootstrap if not each.reachable]
                reasons = "; ".join(
                    f"{each.address}: {each.last_error or 'no answer'}" for each in unreachable
                )
                raise NetworkError(
                    f"no manifest of swarm {swarm_id[:16]} was found in {timeout_seconds:g} s"
                    f" ({reasons or 'peers were reached, and none holds it'})"
                ) from error


async def _found(transport: Libp2pTransport, swarm_id: str) -> Manifest:
    while True:
        for text in await fetch_manifests(transport, swarm_id, verify):
            try:
                manifest = Manifest.from_toml(text)
            except ConfigError:
                # Anybody can put anything there.
                continue
            if manifest.swarm_id == swarm_id:
                return manifest
        await asyncio.sleep(_PAUSE_SECONDS)
