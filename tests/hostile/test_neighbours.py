"""Many keys of one address: together they have what the neighbourhood has, however many they are."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile.stage import Attacker, Stage, node, until

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(600)]

ONE_HOST, OTHER_HOST = "127.0.202.1", "127.0.203.1"
SHARES = {"messages_per_second": 0.5, "burst_seconds": 40, "newcomer_part": 0.2, "neighbourhood_shares": 1}
OF_A_KEY, OF_ALL = 4, 20
"""Messages that a new key, and all keys of one address together, may send at once."""
KEYS = [f"sibling {number}" for number in range(8)]


@pytest.fixture
def lone(short_folder: Path, attacker: Attacker) -> Iterator[Stage]:
    """A victim that gives little, and slowly."""
    arguments = (each for key, value in SHARES.items() for each in ("--set", f"peers.{key}={value}"))
    victim = node(short_folder, "lone", "127.0.3.1", *arguments).start()
    stage = Stage(victim, victim, attacker)
    try:
        until(lambda: bool(stage.status().addresses))
        stage.victim_address = stage.status().addresses[0]
        yield stage
        assert victim.stop()[0] == 0, victim.printed()[-2000:]
    finally:
        victim.kill()


def test_a_new_key_of_an_address_that_is_used_up_is_refused_and_one_of_another_address_is_not(
    lone: Stage,
) -> None:
    attacker = lone.attacker
    ids = {who: attacker.appear(who, lone.victim_address, ONE_HOST)["peer_id"] for who in KEYS}
    late = attacker.appear("late", lone.victim_address, ONE_HOST)["peer_id"]
    stranger = attacker.appear("stranger", lone.victim_address, OTHER_HOST)["peer_id"]

    # Once it is known where they live: until then all of them share one quota.
    until(lambda: {*ids.values(), late, stranger} <= set(lone.books()))

    def send(*names: str) -> None:
        for who in names:
            attacker.do("send", who=who, kind="unknown kind")

    def taken(peer_id: str) -> int:
        return lone.rejected(peer_id).get("unknown_kind", 0)

    until(lambda: send(*KEYS) or sum(map(taken, ids.values())) >= OF_ALL)
    sent = 0

    def send_late() -> None:
        nonlocal sent
        sent += 1
        send(*KEYS, "late", "stranger")

    lone.until_rejected(late, "rate_limited", send_late)
    assert sent <= OF_A_KEY
    assert set(lone.rejected(stranger)) <= {"unknown_kind"}
    for who in (*KEYS, "late", "stranger"):
        attacker.do("vanish", who=who)
