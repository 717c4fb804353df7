"""Floods of garbage, of valid groups, and of valid groups from many keys of one address, all at once."""

from collections.abc import Callable

from hostile.stage import Stage

FLOODS = {"garbage": ("noise", 300.0), "valid": ("valid", 300.0)} | {
    f"key {number}": ("valid", 25.0) for number in range(4)
}
"""Who sends what, and how many a second."""
_ONE_HOST = "127.0.200.1"


def appear(stage: Stage) -> dict[str, str]:
    """All flooders come up; their peer ids."""
    hosts = {who: _ONE_HOST for who in FLOODS if who.startswith("key")}
    return {
        who: stage.attacker.appear(who, stage.victim_address, hosts.get(who))["peer_id"] for who in FLOODS
    }


def begin(stage: Stage, seconds: float) -> Callable[[], object]:
    """All floods begin; call what is returned to wait for their end."""
    ends = [
        stage.attacker.begin("flood", who=who, kind=kind, per_second=rate, seconds=seconds)
        for who, (kind, rate) in FLOODS.items()
    ]
    return lambda: [end() for end in ends]
