"""Names that peers meet under: the GossipSub topic, the DHT keys, the catch-up protocol.

Each holds the protocol version, and the swarm id where it belongs to one swarm, so that nodes of
different manifests or versions never mix.
"""

from __future__ import annotations

from swarmd_protocol.messages import PROTOCOL_VERSION

CATCH_UP_PROTOCOL = f"/swarmd/{PROTOCOL_VERSION}/catch-up"
"""libp2p protocol id of catch-up streams. The swarm is named in the request."""


def rollouts_topic(swarm_id: str) -> str:
    """GossipSub topic of the sealed rollout groups of one swarm."""
    return f"/swarmd/{PROTOCOL_VERSION}/{swarm_id}/rollouts"


def node_records_key(swarm_id: str) -> str:
    """DHT key of the sealed node records of one swarm; the subkey is the peer id."""
    return f"/swarmd/{PROTOCOL_VERSION}/{swarm_id}/nodes"


def manifest_key(swarm_id: str) -> str:
    """DHT key of the manifest whose digest is `swarm_id`; the subkey is the peer id of who put it."""
    return f"/swarmd/{PROTOCOL_VERSION}/{swarm_id}/manifest"
