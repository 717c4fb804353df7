"""Rules of the configuration that its types cannot express: forms of addresses, and values that
contradict each other. They need nothing but the configuration, so they run before any import.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from swarmd.config import SAMPLER_NAMES, Config, ReplaySection

__all__ = ["broken_rule"]

_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")
_LISTEN = re.compile(r"/(ip4|ip6|dns|dns4|dns6)/[^/\s]+/(tcp|udp)/(\d+)(/[a-z0-9-]+)*")
_JOIN = re.compile(r"/\S+/p2p/[1-9A-HJ-NP-Za-km-z]{40,64}")
_HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/]*):(\d+)")
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_LARGEST_PORT = 65535
_LARGEST_MESSAGE_BYTES = 900_000
_LONGEST_RECORD_SECONDS = 3600
_ADDRESS_PORT = re.compile(r"/(?:tcp|udp)/([^/]+)")
_ADDRESS_IP = re.compile(r"/ip([46])/([^/]+)")
_LARGEST_NUMBER = 2**53
"""No count, size or seed is larger; the wire format and SQLite hold 64 bits."""


def broken_rule(config: Config) -> tuple[str, str] | None:
    """The first rule the configuration breaks, as (key, what is wrong), or None."""
    return next(_broken_rules(config), None)


def _broken_rules(config: Config) -> Iterator[tuple[str, str]]:
    yield from _numbers(config)
    yield from _addresses(config)
    for key, device in (
        ("model.device", config.model.device),
        ("generation.device", config.generation.device or "auto"),
        ("training.device", config.training.device or "auto"),
    ):
        if not _DEVICE.fullmatch(device):
            yield key, f"must be auto, cpu, cuda or cuda:N, got {device!r}"
    if not config.model.name:
        yield "model.name", "must be a known model or a folder, got nothing"
    if config.rollout.group_size < 2:
        yield "rollout.group_size", f"must be at least 2, got {config.rollout.group_size}"
    if config.training.schedule != "constant" and config.training.schedule_steps < 1:
        yield (
            "training.schedule_steps",
            f"must be at least 1 with the schedule {config.training.schedule!r}, got 0",
        )
    elif config.training.schedule != "constant" and (
        config.training.schedule_steps <= config.training.warmup_steps
    ):
        yield (
            "training.schedule_steps",
            f"must be above training.warmup_steps, {config.training.warmup_steps}, "
            f"got {config.training.schedule_steps}",
        )
    for section, low, high in (
        (config.gossip, "redial_min_seconds", "redial_max_seconds"),
        (config.workers, "restart_min_seconds", "restart_max_seconds"),
        (config.gossip, "record_interval_seconds", "record_ttl_seconds"),
        (config.peers, "backoff_min_seconds", "backoff_max_seconds"),
        (config.peers, "close_below", "ignore_below"),
    ):
        if getattr(section, low) > getattr(section, high):
            name = next(name for name in type(config).model_fields if getattr(config, name) is section)
            yield f"{name}.{low}", f"must not be above {name}.{high}, {getattr(section, high):g}"
    yield from _peers(config)
    yield from _replay(config.replay)


def _replay(replay: ReplaySection) -> Iterator[tuple[str, str]]:
    if replay.sampler not in SAMPLER_NAMES and not _FUNCTION.fullmatch(replay.sampler):
        yield (
            "replay.sampler",
            f"must be {', '.join(SAMPLER_NAMES)} or MODULE:FUNCTION, got {replay.sampler!r}",
        )
    batch_groups = replay.local_groups + replay.external_groups
    for key, value in (("adaptive_most", replay.adaptive_most), ("adaptive_least", replay.adaptive_least)):
        if replay.adaptive and value > batch_groups:
            yield (
                f"replay.{key}",
                f"must be at most replay.local_groups + replay.external_groups ({batch_groups}), got {value}",
            )
    if replay.adaptive and replay.adaptive_most and replay.adaptive_least > replay.adaptive_most:
        yield "replay.adaptive_least", f"must not be above replay.adaptive_most, {replay.adaptive_most}"


def _peers(config: Config) -> Iterator[tuple[str, str]]:
    peers = config.peers
    if config.gossip.record_ttl_seconds > _LONGEST_RECORD_SECONDS:
        yield (
            "gossip.record_ttl_seconds",
            f"must be at most {_LONGEST_RECORD_SECONDS}, since no node keeps a record for longer, "
            f"got {config.gossip.record_ttl_seconds:g}",
        )
    for network in peers.exempt_networks:
        try:
            ipaddress.ip_network(network)
        except ValueError:
            yield "peers.exempt_networks", f"must be networks like 192.168.0.0/16, got {network!r}"
    burst_bytes = peers.newcomer_part * peers.bytes_per_second * peers.burst_seconds
    if burst_bytes < _LARGEST_MESSAGE_BYTES:
        yield (
            "peers.bytes_per_second",
            f"times peers.newcomer_part and peers.burst_seconds must be at least {_LARGEST_MESSAGE_BYTES}, "
            f"so that a new peer can send the largest message, got {burst_bytes:.0f}",
        )


def _numbers(config: Config) -> Iterator[tuple[str, str]]:
    for name in type(config).model_fields:
        section = getattr(config, name)
        for field in type(section).model_fields:
            value = getattr(section, field)
            if isinstance(value, int | float) and abs(value) > _LARGEST_NUMBER:
                yield f"{name}.{field}", f"must be at most {_LARGEST_NUMBER}, got {value}"


def join_address_problem(address: str) -> str | None:
    """Why nobody can be joined at this address. None: it has the form of one."""
    if _JOIN.fullmatch(address) and _numbers_are_possible(address):
        return None
    return (
        "must be multiaddrs ending in /p2p/PEERID, like /ip4/203.0.113.5/tcp/31337/p2p/12D3Koo..., "
        f"got {address!r}"
    )


def _addresses(config: Config) -> Iterator[tuple[str, str]]:
    for address in config.swarm.join:
        problem = join_address_problem(address)
        if problem:
            yield "swarm.join", problem
    for address in config.swarm.listen:
        if not _LISTEN.fullmatch(address) or not _numbers_are_possible(address):
            yield "swarm.listen", f"must be multiaddrs like /ip4/0.0.0.0/tcp/31337, got {address!r}"
    listen = config.monitor.metrics_listen
    if listen:
        match = _HOST_PORT.fullmatch(listen)
        if match is None or int(match[2]) > _LARGEST_PORT:
            yield "monitor.metrics_listen", f"must be HOST:PORT, got {listen!r}"


def _numbers_are_possible(address: str) -> bool:
    """Whether IP addresses and ports in a multiaddr are such."""
    try:
        for version, text in _ADDRESS_IP.findall(address):
            if ipaddress.ip_address(text).version != int(version):
                return False
    except ValueError:
        return False
    ports = _ADDRESS_PORT.findall(address)
    return all(port.isdigit() and len(port) < 6 and int(port) <= _LARGEST_PORT for port in ports)
