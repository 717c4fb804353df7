"""A node in the middle of its work, for tests of what shows it."""

from swarmd.monitor.status import (
    BootstrapStatus,
    BufferStatus,
    NodeStatus,
    PeerStatus,
    RewardStatus,
    TrainingStatus,
    WorkerStatus,
)

PEER_ID = "12D3KooWJ3rVxTqS4ZC5iMxKsuV1b6qcvKbDbVUQ2n9TgYF5fox1"
RECENT = tuple(0.1 + 0.004 * n + (0.03 if n % 3 else -0.03) for n in range(60))


def sample_status(**changes):
    fields = {
        "peer_id": PEER_ID,
        "name": "fox",
        "swarm": "tiny",
        "swarm_id": "3f9a1c0e" * 8,
        "model": "tiny",
        "state": "training",
        "round": 60,
        "rounds": 100,
        "policy_version": 58,
        "uptime_seconds": 131.4,
        "addresses": (f"/ip4/192.168.1.7/tcp/31337/p2p/{PEER_ID}",),
        "peers": 2,
        "bootstrap": (BootstrapStatus(address="/ip4/10.0.0.9/tcp/31337/p2p/12D3Koo", is_reachable=True),),
        "reward": RewardStatus(local_mean=RECENT[-1], external_mean=0.24, eval=0.19, recent=RECENT),
        "buffer": BufferStatus(
            local=3, external=118, bytes=3_400_000, rejected={"no_signal": 41, "stale": 2}
        ),
        "workers": {
            "trainer": WorkerStatus(pid=101, state="ready", idle_share=0.125),
            "generator": WorkerStatus(pid=102, state="ready", restarts=1, idle_share=0.02),
            "verifier-1": WorkerStatus(pid=103, state="ready"),
        },
        "training": TrainingStatus(
            loss=0.01,
            grad_norm=0.6,
            entropy=0.9,
            clipped_share=0.0125,
            sampler_kl=0.0021,
            sampler_gap=2e-6,
            effective_share=0.97,
            lag_groups=(3, 0, 1),
            step_seconds=0.31,
        ),
        "rounds_per_minute": 27.3,
        "groups_per_minute": 218.4,
        "tokens_per_second": 1240.0,
        "trained_groups": 480,
        "external_groups": 212,
        "filled": 28,
        "loop_lag_max_ms": 12.5,
        "resident_bytes": 201_000_000,
        "versions": {"swarmd": "0.1.0", "protocol": "1"},
    }
    return NodeStatus(**{**fields, **changes})


def sample_peers():
    return (
        PeerStatus(
            peer_id=PEER_ID[:-4] + "owl2",
            name="owl",
            model="tiny",
            round=57,
            addresses=("/ip4/192.168.1.8/tcp/31337",),
            accepted=140,
            rejected={"stale": 2},
            last_seen_seconds=1.5,
        ),
        PeerStatus(peer_id=PEER_ID[:-4] + "elk3", name="elk", model="tiny-weak", accepted=98),
    )
