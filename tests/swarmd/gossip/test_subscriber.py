import asyncio
import random

import msgspec
import pytest
from swarmd_protocol.envelope import EnvelopeLimits, seal_message
from swarmd_protocol.errors import Reason
from swarmd_protocol.messages import (
    CompletionMessage,
    FinishReason,
    Kind,
    ManifestMessage,
    RolloutGroupMessage,
    TaskReference,
)
from swarmd_protocol.validation import GroupLimits

from swarmd.gossip import seen
from swarmd.gossip.catch_up import RecentGroups
from swarmd.gossip.clock_skew import ClockSkew
from swarmd.gossip.peers import PeerBook
from swarmd.gossip.reputation import Reputation, ReputationSettings
from swarmd.gossip.subscriber import OpenedGroup, Subscriber
from swarmd.gossip.subscription import Received, Subscription
from swarmd.identity import Identity, verify

SWARM = "ab" * 32
NOW = 1_700_000_000.0
NOW_MS = int(NOW * 1000)
REPUTATION = ReputationSettings(
    half_life_seconds=600,
    ignore_below=-20,
    close_below=-50,
    ignore_seconds=0,
    backoff_min_seconds=300,
    backoff_max_seconds=86_400,
    newcomer_groups=20,
)
ME, AUTHOR, RELAY = Identity.generate(), Identity.generate(), Identity.generate()
LIMITS = GroupLimits(
    group_size_min=2,
    group_size_max=8,
    max_completion_characters=100,
    max_completion_tokens=100,
    task_digests={"arc": "d1"},
    held_out=(0, 100),
    max_age_ms=600_000,
    max_skew_ms=60_000,
)


def message(number: int = 0, **changes: object) -> RolloutGroupMessage:
    whole = RolloutGroupMessage(
        group_id=number.to_bytes(16, "big"),
        task=TaskReference("arc", "d1", 1_000, number),
        completions=(CompletionMessage("a", FinishReason.STOP), CompletionMessage("b", FinishReason.LENGTH)),
        policy_version=1,
        model="tiny",
        created_ms=NOW_MS - 1_000,
    )
    return msgspec.structs.replace(whole, **changes)


def sealed(
    body: object,
    author: Identity = AUTHOR,
    kind: Kind = Kind.ROLLOUT_GROUP,
    swarm_id: str = SWARM,
    created_ms: int = NOW_MS,
) -> bytes:
    return seal_message(
        body,
        kind=kind,
        swarm_id=swarm_id,
        author=author.public_key,
        created_ms=created_ms,
        sign=author.sign,
    )


def damaged(envelope: bytes) -> bytes:
    """With one bit of the signature flipped."""
    return envelope[:-1] + bytes([envelope[-1] ^ 1])


class Setting:
    """A subscriber with its inbox."""

    def __init__(self) -> None:
        self.inbox = Subscription("topic", 100_000)
        self.reputation = Reputation(REPUTATION, lambda peer_id: None, lambda: NOW)
        self.peers = PeerBook(ME.peer_id, self.reputation)
        self.skew = ClockSkew(clock=lambda: 100.0, wall_clock=lambda: NOW)
        self.recent = RecentGroups(1_000, 10_000_000, 600_000, wall_clock=lambda: NOW)
        self.subscriber = Subscriber(
            ME.peer_id,
            self.inbox,
            verify,
            EnvelopeLimits(SWARM, Kind.ROLLOUT_GROUP, 600_000, 60_000, 100_000),
            LIMITS,
            self.peers,
            self.recent,
            clock_skew=self.skew,
            wall_clock=lambda: NOW,
        )

    async def open(self, *envelopes: bytes, source: Identity = AUTHOR) -> list[OpenedGroup]:
        for envelope in envelopes:
            self.inbox.push(Received(source.peer_id, envelope))
        self.inbox.close()
        return [opened async for opened in self.subscriber]

    def rejected(self, peer: Identity) -> dict[str, int]:
        views = {view.peer_id: view.rejected for view in self.peers.views(())}
        return views.get(peer.peer_id, {})


async def test_a_good_group_is_handed_out_with_its_author_and_kept_for_catch_up() -> None:
    setting = Setting()
    assert await setting.open(sealed(message())) == [OpenedGroup(AUTHOR.peer_id, AUTHOR.peer_id, message())]
    assert setting.peers.rejected == {}
    assert len(setting.recent) == 1
    assert setting.subscriber.opened == setting.subscriber.received == 1


async def test_a_group_that_another_peer_passed_on_still_belongs_to_its_author() -> None:
    setting = Setting()
    (opened,) = await setting.open(sealed(message()), source=RELAY)
    assert opened.author == AUTHOR.peer_id


async def test_a_group_that_was_seen_before_is_a_duplicate_also_in_a_new_envelope() -> None:
    setting = Setting()
    again = sealed(message(), created_ms=NOW_MS - 5)
    opened = await setting.open(sealed(message()), sealed(message()), again, source=RELAY)
    assert len(opened) == 1
    assert setting.rejected(AUTHOR) == {}
    assert setting.rejected(RELAY) == {"duplicate": 2}
    assert len(setting.recent) == 1


async def test_a_group_asked_for_that_gossip_brought_first_is_nobodys_fault() -> None:
    setting = Setting()
    setting.inbox.push(Received(AUTHOR.peer_id, sealed(message())))
    setting.inbox.push(Received(RELAY.peer_id, sealed(message()), asked_for=True))
    assert len(await setting.open()) == 1
    assert setting.peers.rejected == {}


async def test_the_same_group_id_of_two_authors_is_no_duplicate() -> None:
    setting = Setting()
    assert len(await setting.open(sealed(message()), sealed(message(), author=RELAY))) == 2


async def test_the_memory_of_seen_groups_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen, "MOST_GROUPS", 10)
    setting = Setting()
    await setting.open(*[sealed(message(number)) for number in range(50)])
    assert len(setting.subscriber._seen) <= 10


async def test_own_groups_that_come_back_are_passed_over_without_blame() -> None:
    setting = Setting()
    assert await setting.open(sealed(message(), author=ME), source=RELAY) == []
    assert setting.peers.rejected == {}


@pytest.mark.parametrize(
    ("envelope", "reason"),
    [
        (b"", Reason.MALFORMED),
        (b"\xdd\xff\xff\xff\xff", Reason.MALFORMED),
        (bytes(100_001), Reason.OVERSIZED),
        (sealed(message(), swarm_id="cd" * 32), Reason.WRONG_SWARM),
        (sealed(ManifestMessage(""), kind=Kind.MANIFEST), Reason.WRONG_KIND),
        (sealed(message(), created_ms=NOW_MS - 700_000), Reason.STALE),
        (sealed(message(), created_ms=NOW_MS + 70_000), Reason.FROM_FUTURE),
        (damaged(sealed(message())), Reason.BAD_SIGNATURE),
    ],
)
async def test_a_bad_envelope_is_counted_against_the_peer_that_sent_it(
    envelope: bytes, reason: Reason
) -> None:
    setting = Setting()
    assert await setting.open(envelope, source=RELAY) == []
    assert setting.rejected(RELAY) == {reason.value: 1}
    assert setting.rejected(AUTHOR) == {}
    assert len(setting.recent) == 0


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (message(group_id=b"short"), Reason.MALFORMED),
        (ManifestMessage("no group"), Reason.MALFORMED),
        (message(completions=(CompletionMessage("a", FinishReason.STOP),)), Reason.BAD_GROUP_SIZE),
        (message(task=TaskReference("arc", "other", 1_000, 0)), Reason.UNKNOWN_TASK),
        (message(task=TaskReference("arc", "d1", 99, 0)), Reason.HELD_OUT_TASK),
        (message(media_type="image/png"), Reason.UNSUPPORTED_MEDIA_TYPE),
    ],
)
async def test_a_bad_group_is_counted_against_the_author_who_signed_it(body: object, reason: Reason) -> None:
    setting = Setting()
    assert await setting.open(sealed(body), source=RELAY) == []
    assert setting.rejected(AUTHOR) == {reason.value: 1}
    assert setting.rejected(RELAY) == {}


async def test_who_held_a_group_back_until_it_was_stale_is_at_fault_and_not_who_signed_it() -> None:
    setting = Setting()
    assert await setting.open(sealed(message(created_ms=NOW_MS - 700_000)), source=RELAY) == []
    assert setting.rejected(RELAY) == {"stale": 1}
    assert setting.rejected(AUTHOR) == {}


async def test_a_policy_version_that_jumps_costs_one_group() -> None:
    setting = Setting()
    versions = (1, 50, 2**61, 2**61 + 1, 3)
    opened = await setting.open(*[sealed(message(n, policy_version=v)) for n, v in enumerate(versions)])
    assert [group.message.policy_version for group in opened] == [1, 50, 2**61 + 1, 3]
    assert setting.rejected(AUTHOR) == {"version_jump": 1}


async def test_what_a_banned_author_signed_is_refused_whoever_passes_it_on() -> None:
    setting = Setting()
    setting.reputation.say(AUTHOR.peer_id, "banned")
    assert await setting.open(sealed(message()), source=RELAY) == []
    assert setting.rejected(AUTHOR) == {"banned": 1}
    assert setting.rejected(RELAY) == {}


async def test_a_peer_that_loses_its_good_name_is_not_heard_with_what_already_waits() -> None:
    setting = Setting()
    opened = await setting.open(*[b"garbage"] * 51, sealed(message()))
    assert opened == []
    assert setting.rejected(AUTHOR)["banned"] == 1


async def test_one_bad_message_does_not_stop_the_good_ones() -> None:
    setting = Setting()
    rng = random.Random(0)
    garbage = [rng.randbytes(rng.randrange(200)) for _ in range(100)]
    for data in garbage:
        setting.inbox.push(Received(RELAY.peer_id, data))
    opened = await setting.open(sealed(message(1)), sealed(message(2)))
    assert [group.message.task.index for group in opened] == [1, 2]
    assert sum(setting.peers.rejected.values()) == sum(setting.rejected(RELAY).values()) == 100


async def test_a_flood_of_bad_messages_lets_other_work_run() -> None:
    setting = Setting()
    ticks = 0

    async def other_work() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(other_work())
    await setting.open(*[b"garbage"] * 500)
    other.cancel()
    assert ticks >= 500


async def test_several_lanes_share_the_groups() -> None:
    setting = Setting()
    for number in range(20):
        setting.inbox.push(Received(AUTHOR.peer_id, sealed(message(number))))
    setting.inbox.close()

    async def lane() -> list[int]:
        return [opened.message.task.index async for opened in setting.subscriber]

    lanes = await asyncio.gather(lane(), lane(), lane())
    assert sorted(index for taken in lanes for index in taken) == list(range(20))


@pytest.mark.parametrize("behind_seconds", [42, 3600, -3600])
async def test_messages_tell_how_far_this_clock_is_off_also_those_it_finds_too_old_or_too_new(behind_seconds):
    setting = Setting()
    sent_ms = NOW_MS + behind_seconds * 1000
    data = sealed(message(created_ms=NOW_MS - 1000), created_ms=sent_ms)
    setting.inbox.push(Received(AUTHOR.peer_id, data, arrived_at=100.0))
    await setting.open()
    assert setting.skew.seconds() == pytest.approx(-behind_seconds)


@pytest.mark.parametrize(
    ("data", "source"),
    [
        (damaged(sealed(message(), created_ms=NOW_MS + 3_600_000)), AUTHOR),
        (damaged(sealed(message(), created_ms=NOW_MS + 10_000)), AUTHOR),
        (sealed(message(), created_ms=NOW_MS - 3_600_000), RELAY),
        (b"nonsense", AUTHOR),
    ],
    ids=["forged, of another time", "forged", "sent again by another", "nonsense"],
)
async def test_only_what_a_peer_has_sealed_and_sent_itself_says_something_about_clocks(data, source):
    setting = Setting()
    setting.inbox.push(Received(source.peer_id, data, arrived_at=100.0))
    await setting.open()
    assert setting.skew.seconds() is None
