"""The DHT of a real node, asked and answered by peers that want to end it, to hold it up, or to fill it."""

import pytest
from hostile.stage import Stage

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(600)]

REASONS = {"crowd": "oversized", "nest": "malformed", "alias": "wrong_author"}


def test_requests_that_no_honest_node_makes_are_refused_and_counted_for_their_sender(stage: Stage) -> None:
    with stage.stranger("asker") as asker:
        for how, reason in REASONS.items():
            stage.until_rejected(
                asker, reason, lambda how=how: stage.attacker.do("call_dht", who="asker", how=how)
            )
        # They are large, so the sender's share of bytes may have been used up before.
        assert set(stage.rejected(asker)) - {"rate_limited"} == set(REASONS.values())
    stage.is_unharmed()
    stage.honest_is_heard()


def test_a_flood_of_searches_gets_the_share_of_one_peer(stage: Stage) -> None:
    with stage.stranger("searcher") as searcher:
        answered = stage.attacker.do("flood_dht", who="searcher", count=1_000)
        rejected = stage.rejected(searcher)
        assert set(rejected) <= {"rate_limited", "flooding", "banned"}
        assert sum(rejected.values()) >= 1_000 - answered > 0
    stage.is_unharmed()
    stage.honest_is_heard()


@pytest.mark.parametrize(("how", "reason"), [("nest", "malformed"), ("crowd", "oversized")])
def test_bad_answers_of_the_dht_are_refused_and_counted_for_their_giver(
    stage: Stage, how: str, reason: str
) -> None:
    who = f"answerer {how}"
    with stage.stranger(who) as answerer:
        stage.attacker.do("answer_dht", who=who, how=how)
        stage.until_rejected(answerer, reason, lambda: None)
    stage.is_unharmed()
    stage.honest_is_heard()
