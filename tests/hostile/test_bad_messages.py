"""Messages of every bad kind, sent to a real node: each is counted for its sender and for nobody else,
and the honest peer's groups go on being used.
"""

import pytest
from hostile.forge import BAD
from hostile.stage import Stage

pytestmark = pytest.mark.swarm

KINDS = list(BAD)


@pytest.mark.parametrize("kinds", [KINDS[start::7] for start in range(7)], ids=" | ".join)
def test_bad_messages_are_counted_for_their_sender_with_their_reasons(stage: Stage, kinds: list[str]) -> None:
    who = kinds[0]
    sender = stage.attacker.appear(who, stage.victim_address)["peer_id"]
    for kind in kinds:
        reason = BAD[kind][1].value
        stage.until_rejected(sender, reason, lambda kind=kind: stage.attacker.do("send", who=who, kind=kind))
    assert set(stage.rejected(sender)) == {BAD[kind][1].value for kind in kinds}
    assert stage.others_rejected() == {}
    stage.honest_is_heard()
