"""Rules across keys, seen through the loader that applies them."""

import re

import pytest

from swarmd.config_sources import load_config
from swarmd.errors import ConfigError

PEER = "12D3KooWMepTrqqQ1WJbAAiP3hmXyebN4Z3aEeUk3tt578DkX8iz"


@pytest.mark.parametrize(
    "assignment",
    [
        f"swarm.join=/ip4/203.0.113.5/tcp/31337/p2p/{PEER}",
        f"swarm.join=/dns4/node.example/tcp/1/p2p/{PEER},/ip6/::1/udp/4001/quic-v1/p2p/{PEER}",
        "swarm.listen=/ip4/0.0.0.0/tcp/0,/ip4/0.0.0.0/udp/4001/quic-v1",
        "model.device=cuda:1",
        "replay.sampler=learnable",
        "replay.sampler=package.module:rule",
        "monitor.metrics_listen=127.0.0.1:9100",
        "monitor.metrics_listen=[::1]:9100",
    ],
)
def test_right_forms_are_taken(assignment: str) -> None:
    load_config(assignments=[assignment])


@pytest.mark.parametrize(
    "assignment",
    [
        "swarm.join=/ip4/203.0.113.5/tcp/31337",
        "swarm.join=203.0.113.5:31337",
        f"swarm.join=/ip4/1.2.3.4/tcp/1/p2p/{PEER} x",
        "swarm.listen=0.0.0.0:31337",
        "swarm.listen=/ip4/0.0.0.0/tcp/70000",
        "swarm.listen=/ip4/300.0.0.1/tcp/1",
        "swarm.listen=/ip6/127.0.0.1/tcp/1",
        f"swarm.join=/ip4/1.2.3.4/tcp/99999/p2p/{PEER}",
        f"swarm.join=/ip4/1.2.3.400/tcp/1/p2p/{PEER}",
        "node.rounds=9999999999999999999999",
        "gossip.redial_max_seconds=1e300",
        "model.device=gpu",
        "model.name=",
        "monitor.metrics_listen=9100",
        "monitor.metrics_listen=localhost:99999",
        "rollout.group_size=1",
        "gossip.redial_min_seconds=100",
        "gossip.record_interval_seconds=500",
        "workers.restart_min_seconds=100",
        "replay.sampler=newest",
        "replay.sampler=module:",
        "replay.sampler=./module.py:rule",
    ],
)
def test_wrong_forms_are_refused_naming_key_and_source(assignment: str) -> None:
    key = assignment.partition("=")[0]
    with pytest.raises(ConfigError) as caught:
        load_config(assignments=[assignment])
    assert str(caught.value).startswith(f"{key}:")
    assert str(caught.value).endswith("(--set)")


def test_schedule_with_an_end_needs_its_length() -> None:
    with pytest.raises(ConfigError, match=r"training\.schedule_steps: must be at least 1"):
        load_config(assignments=["training.schedule=linear"])
    load_config(assignments=["training.schedule=linear", "training.schedule_steps=30"])


def test_batch_of_no_groups_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot both be 0"):
        load_config(assignments=["replay.local_groups=0", "replay.external_groups=0"])


def test_isolated_wins_over_addresses_of_a_file() -> None:
    loaded = load_config(assignments=["swarm.isolated=true", f"swarm.join=/ip4/1.2.3.4/tcp/1/p2p/{PEER}"])
    assert loaded.config.swarm.isolated


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("peers.exempt_networks=10.0.0.1/8", "must be networks like 192.168.0.0/16, got '10.0.0.1/8'"),
        ("peers.bytes_per_second=1000", "must be at least 900000, so that a new peer can send"),
        ("peers.close_below=-1", "must not be above peers.ignore_below, -20"),
        ("peers.backoff_max_seconds=1", "must not be above peers.backoff_max_seconds, 1"),
        ("gossip.record_ttl_seconds=7200", "must be at most 3600, since no node keeps a record for longer"),
    ],
)
def test_rules_for_peers(assignment: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(assignments=[assignment])


@pytest.mark.parametrize(
    ("assignments", "says"),
    [
        (["replay.adaptive_most=9"], "replay.adaptive_most: must be at most"),
        (["replay.adaptive_least=9"], "replay.adaptive_least: must be at most"),
        (["replay.adaptive_least=5", "replay.adaptive_most=4"], "replay.adaptive_least: must not be above"),
    ],
)
def test_an_adaptive_mix_stays_within_a_batch(assignments: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        load_config(assignments=["replay.adaptive=true", *assignments])
    load_config(assignments=assignments)
