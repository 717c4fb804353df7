"""Messages of every bad kind, sent to a real node: each is counted for its sender and for nobody else,
and the honest peer's groups go on being used.
"""

import pytest
from hostile.forge import BAD
from hostile.stage import Stage

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(600)]

KINDS = list(BAD)


@pytest.mark.parametrize("kinds", [KINDS[start::4] for start in range(4)], ids=" | ".join)
def test_bad_messages_are_counted_for_their_sender_with_their_reasons(stage: Stage, kinds: list[str]) -> None:
    who = kinds[0]
    with stage.stranger(who) as sender:
        for kind in kinds:
            reason = BAD[kind][1].value
            stage.until_rejected(
                sender, reason, lambda kind=kind: stage.attacker.do("send", who=who, kind=kind)
            )
        assert set(stage.rejected(sender)) == {BAD[kind][1].value for kind in kinds}
    stage.is_unharmed()
    stage.honest_is_heard()


def test_an_honest_nodes_message_said_again_is_booked_on_who_says_it_again(stage: Stage) -> None:
    with stage.stranger("parrot") as parrot:
        stage.until_rejected(
            parrot,
            "duplicate",
            lambda: stage.attacker.do("replay", who="parrot", author=stage.honest_id, times=3),
        )
    stage.is_unharmed()


def test_an_honest_nodes_group_under_another_name_is_a_duplicate_of_the_thief(stage: Stage) -> None:
    with stage.stranger("thief") as thief:
        stage.until_rejected(
            thief, "duplicate", lambda: stage.attacker.do("steal", who="thief", author=stage.honest_id)
        )
    stage.is_unharmed()
    stage.honest_is_heard()
