"""Neighbourhoods: whom a stranger shares a quota with, because one machine could be all of them.

Making a key costs nothing, an address costs something. Peers of one IPv4 /24 or IPv6 /56 are one
neighbourhood, and so are all that come over one relay. Addresses of private networks say nothing:
machines of one household, or the nodes of a test, are not held against each other.

A peer that was never connected here is known by no address at all. Such peers share one quota
as long as they are new: see `swarmd.gossip.shares`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence

UNSEEN = "unseen"
"""The neighbourhood of all peers that were never connected to this node."""

_IPV4_PREFIX = 24
_IPV6_PREFIX = 56
_IP = re.compile(r"/ip[46]/([^/]+)")
_RELAY = re.compile(r"/p2p/([^/]+)/p2p-circuit")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def neighbourhood(address: str, exempt: Sequence[Network]) -> str | None:
    """The neighbourhood that a multiaddr lies in. None: it has none that says anything."""
    relay = _RELAY.search(address)
    if relay is not None:
        return f"relay {relay[1]}"
    match = _IP.match(address)
    if match is None:
        return None
    try:
        ip = ipaddress.ip_address(match[1])
    except ValueError:
        return None
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    if any(ip in network for network in exempt):
        return None
    prefix = _IPV4_PREFIX if ip.version == 4 else _IPV6_PREFIX
    return str(ipaddress.ip_network((ip, prefix), strict=False))


class Neighbourhoods:
    """The neighbourhoods of the peers that are connected or were lately.

    Args:
        exempt: networks that make no neighbourhood, in CIDR notation.
        most_peers: how many are remembered.
    """

    def __init__(self, exempt: Iterable[str], most_peers: int = 4096) -> None:
        self._exempt = tuple(ipaddress.ip_network(network) for network in exempt)
        self._most_peers = most_peers
        self._of: dict[str, str | None] = {}

    def note_connected(self, connected: Mapping[str, Sequence[str]]) -> None:
        """These peers are connected now, at these multiaddrs. The first one that says something counts."""
        for peer_id, addresses in connected.items():
            found = (neighbourhood(address, self._exempt) for address in addresses)
            # Last in the dictionary: remembered longest.
            self._of.pop(peer_id, None)
            self._of[peer_id] = next((place for place in found if place is not None), None)
        for peer_id in list(self._of)[: max(0, len(self._of) - self._most_peers)]:
            del self._of[peer_id]

    def of(self, peer_id: str) -> str | None:
        """Where a peer lives: None for an exempt address, UNSEEN when it was never connected."""
        return self._of.get(peer_id, UNSEEN)
