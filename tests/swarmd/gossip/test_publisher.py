import asyncio

import pytest
from swarmd_protocol.codec import decode, unpack_logprobs
from swarmd_protocol.envelope import Envelope, EnvelopeLimits, open_envelope
from swarmd_protocol.errors import Reason
from swarmd_protocol.messages import FinishReason, Kind, RolloutGroupMessage, TaskReference
from swarmd_protocol.topics import rollouts_topic
from swarmd_protocol.validation import GroupLimits

from swarmd.gossip.catch_up import RecentGroups
from swarmd.gossip.memory import InMemoryNetwork
from swarmd.gossip.publisher import Author, Publisher
from swarmd.gossip.subscription import Subscription
from swarmd.identity import Identity, verify
from swarmd.types import Completion, Prompt, RolloutGroup

SWARM = "ab" * 32
NOW = 1_700_000_000.0
ME = Identity.generate()
LIMITS = GroupLimits(
    group_size_min=2,
    group_size_max=8,
    max_completion_characters=10_000,
    max_completion_tokens=1_000,
    task_digests={"arc": "d1"},
    held_out=(0, 100),
    max_age_ms=600_000,
    max_skew_ms=60_000,
)


def group(size: int = 4, text: str = "answer", logprobs: int = 3, seed: int = 1_000) -> RolloutGroup:
    return RolloutGroup(
        group_id="07" * 16,
        author=ME.peer_id,
        is_local=True,
        task=TaskReference("arc", "d1", seed, 5),
        prompt=Prompt("plain", "?"),
        completions_G=tuple(
            Completion(
                f"{text}{number}",
                FinishReason.STOP,
                token_ids_T=tuple(range(logprobs)),
                logprobs_T=tuple(-0.5 * (step + 1) for step in range(logprobs)) or None,
            )
            for number in range(size)
        ),
        rewards_G=tuple(float(number % 2) for number in range(size)),
        policy_version=9,
        created_at=NOW - 1,
        received_at=0.0,
        size_bytes=100,
    )


class Setting:
    """A publisher on an in-memory network with one listener."""

    def __init__(self, max_message_bytes: int = 900_000, fingerprint: str | None = "tok") -> None:
        network = InMemoryNetwork()
        self.transport = network.transport(ME.peer_id)
        self.peer = network.transport("peer")
        self.recent = RecentGroups(100, 10_000_000, 600_000, wall_clock=lambda: NOW)
        self.publisher = Publisher(
            self.transport,
            Author(SWARM, ME.public_key, ME.sign),
            LIMITS,
            max_message_bytes,
            "tiny",
            fingerprint,
            self.recent,
            wall_clock=lambda: NOW,
        )
        self.inbox: Subscription = self.peer.subscribe(Subscription(rollouts_topic(SWARM), 100))

    async def publish(self, own: RolloutGroup) -> tuple[Reason | None, list[RolloutGroupMessage]]:
        async with self.transport, self.peer:
            reason = await self.publisher.publish(own)
            await asyncio.sleep(0.01)
        return reason, [open_message(received.data) async for received in self.inbox]


def open_message(data: bytes) -> RolloutGroupMessage:
    limits = EnvelopeLimits(SWARM, Kind.ROLLOUT_GROUP, 600_000)
    envelope = open_envelope(data, verify, limits, int(NOW * 1000))
    assert isinstance(envelope, Envelope)
    assert envelope.author == ME.public_key
    message = decode(envelope.payload, RolloutGroupMessage)
    assert isinstance(message, RolloutGroupMessage)
    return message


async def test_a_group_arrives_as_it_is_signed_by_its_author() -> None:
    setting = Setting()
    reason, (message,) = await setting.publish(group())
    assert reason is None
    assert message.group_id.hex() == "07" * 16
    assert message.task == TaskReference("arc", "d1", 1_000, 5)
    assert [completion.text for completion in message.completions] == [f"answer{n}" for n in range(4)]
    assert {completion.finish_reason for completion in message.completions} == {FinishReason.STOP}
    assert (message.policy_version, message.model) == (9, "tiny")
    assert message.created_ms == int((NOW - 1) * 1000)
    assert message.behaviour is not None
    assert message.behaviour.tokenizer_fingerprint == "tok"
    assert unpack_logprobs(message.behaviour.values[0]) == (-0.5, -1.0, -1.5)
    assert setting.publisher.stats.groups == setting.publisher.stats.messages == 1
    assert len(setting.recent) == 1


async def test_log_probabilities_stay_at_home_when_not_shared_or_not_known() -> None:
    for setting, own in ((Setting(fingerprint=None), group()), (Setting(), group(logprobs=0))):
        reason, (message,) = await setting.publish(own)
        assert reason is None
        assert message.behaviour is None


async def test_a_group_too_large_with_log_probabilities_goes_without_them() -> None:
    setting = Setting(max_message_bytes=2_000)
    reason, (message,) = await setting.publish(group(logprobs=500))
    assert reason is None
    assert message.behaviour is None
    assert len(message.completions) == 4
    assert setting.publisher.stats.without_logprobs == 1


@pytest.mark.parametrize(("size", "expected_sizes"), [(4, [2, 2]), (5, [2, 3]), (8, [2, 2, 2, 2])])
async def test_a_group_too_large_for_one_message_goes_in_whole_parts(
    size: int, expected_sizes: list[int]
) -> None:
    setting = Setting(max_message_bytes=4_000)
    text = "x" * (1_000 if size < 8 else 1_500)
    reason, messages = await setting.publish(group(size=size, text=text))
    assert reason is None
    assert [len(message.completions) for message in messages] == expected_sizes
    assert [c.text for message in messages for c in message.completions] == [
        f"{text}{n}" for n in range(size)
    ]
    assert len({message.group_id for message in messages}) == len(messages)
    assert setting.publisher.stats.in_parts == 1


async def test_a_group_that_fits_not_even_in_parts_is_refused_and_nothing_is_sent() -> None:
    setting = Setting(max_message_bytes=4_000)
    reason, messages = await setting.publish(group(text="x" * 3_000))
    assert reason is Reason.TOO_LARGE_TO_PUBLISH
    assert messages == []
    assert setting.publisher.stats.messages == 0
    assert len(setting.recent) == 0


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (group(text="x" * 10_000), Reason.COMPLETION_TOO_LONG),
        (group(size=9), Reason.BAD_GROUP_SIZE),
        (group(seed=10), Reason.HELD_OUT_TASK),
        (group(text="\ud800"), Reason.BAD_TEXT),
        (group(logprobs=1_001), Reason.BAD_LOGPROBS),
    ],
)
async def test_what_peers_would_reject_is_not_published(own: RolloutGroup, expected: Reason) -> None:
    setting = Setting()
    reason, messages = await setting.publish(own)
    assert reason is expected
    assert messages == []


async def test_a_network_that_is_down_is_counted_and_the_group_kept_for_catch_up() -> None:
    setting = Setting()
    assert await setting.publisher.publish(group()) is None
    assert setting.publisher.stats.not_sent == 1
    assert setting.publisher.stats.messages == 0
    assert len(setting.recent) == 1
