"""Floods on a real node: of garbage, of valid groups, and from many keys of one address. Its rounds go on,
the honest peer is heard, memory stays, and the books name the attackers.
"""

from collections.abc import Callable

import pytest
from hostile.stage import Stage

pytestmark = pytest.mark.swarm

MOST_MEMORY_RISE = 100_000_000
CROWD = tuple(f"key {number}" for number in range(4))


@pytest.fixture(scope="module")
def flood(stage: Stage) -> Callable[[float], Callable[[], object]]:
    """Begins all floods at once. They go on from the same keys each time, closed out or not."""
    for who in ("garbage", "valid"):
        stage.attacker.appear(who, stage.victim_address)
    for who in CROWD:
        stage.attacker.appear(who, stage.victim_address, host="127.0.200.1")

    def begin(seconds: float) -> Callable[[], object]:
        floods = [("garbage", "noise", 300.0), ("valid", "valid", 300.0)]
        floods += [(who, "valid", 25.0) for who in CROWD]
        ends = [
            stage.attacker.begin("flood", who=who, kind=kind, per_second=rate, seconds=seconds)
            for who, kind, rate in floods
        ]
        return lambda: [end() for end in ends]

    return begin


def test_rounds_go_on_at_their_rate_during_floods(
    stage: Stage, flood: Callable[[float], Callable[[], object]]
) -> None:
    assert stage.keeps_its_rate(flood) >= 0.9


def test_the_honest_peer_is_heard_during_floods(
    stage: Stage, flood: Callable[[float], Callable[[], object]]
) -> None:
    ended = flood(4.0)
    stage.honest_is_heard()
    ended()


def test_floods_cost_little_memory(stage: Stage) -> None:
    assert stage.memory() - stage.memory_before < MOST_MEMORY_RISE


def test_the_books_name_the_flooders_and_nobody_else(stage: Stage) -> None:
    assert stage.others_rejected() == {}
    books = stage.books()
    refused = sum(
        sum(books[peer_id].rejected.values()) for peer_id in stage.attacker.peer_ids if peer_id in books
    )
    assert refused > 1000


def test_many_keys_of_one_address_have_a_few_shares_together(stage: Stage) -> None:
    books = stage.books()
    print({peer_id[-4:]: (book.accepted, book.rejected) for peer_id, book in books.items()})
