"""What the libp2p transport is told when it is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from swarmd.gossip.dialer import Backoff


@dataclass(frozen=True)
class Libp2pSettings:
    """How to be on the network."""

    identity_path: Path
    """Ed25519 key in libp2p's file format."""
    peer_id: str
    """The peer id of that key."""
    runtime_folder: Path
    """Existing private folder with a short path, for sockets."""
    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/31337",)
    """Multiaddrs. A taken port: the next free one is used, and noted in the state."""
    join: tuple[str, ...] = ()
    """Multiaddrs of bootstrap peers, each ending in /p2p/PEERID."""
    startup_timeout_seconds: float = 60.0
    """For each phase of starting p2pd, and for each dial."""
    redial: Backoff = field(default_factory=lambda: Backoff(min_seconds=2.0, max_seconds=60.0))
    """Pauses between dials of an unreachable address."""
    enough_peers: int = 8
    """With fewer connections than this, known peers are dialled."""
    max_failed_starts: int = 5
    """p2pd is given up when so many starts in a row have failed, ..."""
    failed_starts_seconds: float = 120.0
    """... over at least this time. One that came up and died later is started again for ever."""
