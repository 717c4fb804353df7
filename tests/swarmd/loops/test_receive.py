"""The receive loop: what a peer says about its reward is not asked; refusals are booked on the author."""

import asyncio
import time
from collections.abc import Sequence

import msgspec
import pytest
from swarmd_protocol.codec import pack_logprobs
from swarmd_protocol.messages import (
    BehaviourLogprobs,
    CompletionMessage,
    FinishReason,
    RolloutGroupMessage,
    TaskReference,
)

from swarmd.errors import WorkerError
from swarmd.gossip.peers import PeerBook
from swarmd.gossip.subscriber import OpenedGroup
from swarmd.loops.receive import ReceiveLoop
from swarmd.loops.state import LoopState
from swarmd.replay.buffer import ReplayBuffer
from swarmd.replay.screens import TextLimits, TextScreens
from swarmd.rewards.messages import ScoreReply
from swarmd.tasks.manifest import Manifest


class FakeSubscriber:
    """Hands out given groups, then ends."""

    def __init__(self, groups: Sequence[OpenedGroup]) -> None:
        self._groups = list(groups)
        self.finished: list[OpenedGroup] = []

    def __aiter__(self) -> "FakeSubscriber":
        return self

    async def __anext__(self) -> OpenedGroup:
        if not self._groups:
            raise StopAsyncIteration
        return self._groups.pop(0)

    def done(self, opened: OpenedGroup) -> None:
        self.finished.append(opened)


class FakeVerifier:
    """Index 1 cannot be regenerated, index 2 kills the scorer, index 3 the worker."""

    def __init__(self, right: Sequence[str]) -> None:
        self._right = right

    async def score(self, reference: TaskReference, completions_G: Sequence[str]) -> ScoreReply:
        await asyncio.sleep(0)
        count = len(completions_G)
        if reference.index == 1:
            return ScoreReply(None, (0.0,) * count, ("not_regenerated",) * count)
        if reference.index == 2:
            return ScoreReply(None, (0.0,) * count, ("crashed",) * count)
        if reference.index == 3:
            raise WorkerError("verifier-1 died")
        return ScoreReply(
            "1 + 1?", tuple(float(text in self._right) for text in completions_G), (None,) * count
        )


def message(author: str, index: int, texts: Sequence[str], age_seconds: float = 0.0) -> OpenedGroup:
    return OpenedGroup(
        author,
        author,
        RolloutGroupMessage(
            group_id=f"{author}{index}".encode().ljust(16),
            task=TaskReference("basic_arithmetic", "digest", 2**30, index),
            completions=tuple(CompletionMessage(text, FinishReason.STOP) for text in texts),
            policy_version=3,
            model="tiny",
            created_ms=int((time.time() - age_seconds) * 1000),
        ),
    )


async def receive(
    groups: Sequence[OpenedGroup],
    verifiers: int = 1,
    fingerprint: str | None = None,
    screens: TextScreens | None = None,
    right: Sequence[str] = ("right",),
) -> tuple[ReplayBuffer, PeerBook, LoopState]:
    buffer = ReplayBuffer(
        capacity_groups=10,
        capacity_bytes=1_000_000,
        peer_share=1.0,
        max_age_seconds=60.0,
        max_policy_lag=4,
        max_uses=1,
        clock=time.monotonic,
    )
    peers, state = PeerBook("self"), LoopState()
    loop = ReceiveLoop(
        manifest=Manifest.load("tiny"),
        subscriber=FakeSubscriber(groups),  # type: ignore[arg-type]
        verifier=FakeVerifier(right),  # type: ignore[arg-type]
        buffer=buffer,
        peers=peers,
        verifiers=verifiers,
        screens=screens,
        tokenizer_fingerprint=fingerprint,
    )
    async with asyncio.timeout(5):
        await loop.run(state)
    return buffer, peers, state


async def test_a_group_is_rendered_and_scored_here() -> None:
    buffer, peers, state = await receive([message("a", 0, ["right", "wrong"])])
    (group,) = buffer.drawable()
    manifest = Manifest.load("tiny")
    assert group.prompt.text == f"{manifest.prompt.prefix}1 + 1?{manifest.prompt.suffix}"
    assert (group.author, group.is_local, group.rewards_G) == ("a", False, (1.0, 0.0))
    assert group.completions_G[0].token_ids_T is None
    assert peers.accepted == 1
    assert state.external_since_round.mean == 0.5


async def test_a_group_without_signal_is_accepted_but_not_kept() -> None:
    buffer, peers, state = await receive([message("a", 0, ["wrong", "wrong"])])
    assert buffer.drawable() == []
    assert (peers.accepted, peers.rejected) == (1, {})
    assert state.external_since_round.mean == 0.0


async def test_what_cannot_be_scored_is_booked_on_its_author_and_the_rest_goes_on() -> None:
    groups = [message("a", index, ["right", "wrong"]) for index in (1, 2, 3)]
    buffer, peers, state = await receive([*groups, message("b", 0, ["right", "wrong"])])
    by_author = {view.peer_id: view for view in peers.views(())}
    assert by_author["a"].rejected == {"not_regenerated": 1, "scoring_failed": 2}
    assert (by_author["b"].accepted, by_author["b"].rejected) == (1, {})
    assert len(buffer.drawable()) == 1
    assert state.problems == {}


async def test_a_copied_group_is_a_duplicate_of_the_copier() -> None:
    original = message("a", 0, ["right", "wrong"])
    buffer, peers, _ = await receive([original, OpenedGroup("thief", "thief", original.message)])
    by_author = {view.peer_id: view for view in peers.views(())}
    assert by_author["thief"].rejected == {"duplicate": 1}
    assert [group.author for group in buffer.drawable()] == ["a"]


async def test_a_group_that_was_caught_up_on_keeps_its_age() -> None:
    buffer, _, _ = await receive([message("a", 0, ["right", "wrong"], age_seconds=50.0)])
    (group,) = buffer.drawable()
    assert 49 < time.monotonic() - group.received_at < 56


async def test_several_lanes_take_each_group_once() -> None:
    groups = [message(f"peer{index}", 10 + index, ["right", "wrong"]) for index in range(9)]
    buffer, peers, _ = await receive(groups, verifiers=3)
    assert (peers.accepted, len(buffer.drawable())) == (9, 9)


async def test_a_senders_logprobs_are_kept_when_asked_for_and_its_tokenizer_is_the_same() -> None:
    opened = message("a", 0, ["right", "wrong"])
    behaviour = BehaviourLogprobs("same", (pack_logprobs([-0.5, -1.0]), pack_logprobs([-2.0])))
    told = OpenedGroup("a", "a", msgspec.structs.replace(opened.message, behaviour=behaviour))
    for groups, fingerprint, expected in (
        ([told], "same", [(-0.5, -1.0), (-2.0,)]),
        ([told], "another", [None, None]),
        ([told], None, [None, None]),
        ([opened], "same", [None, None]),
    ):
        buffer, _, _ = await receive(groups, fingerprint=fingerprint)
        (group,) = buffer.drawable()
        assert [completion.logprobs_T for completion in group.completions_G] == expected


@pytest.mark.parametrize(("mode", "kept"), [("off", 2), ("warn", 2), ("drop", 1)])
async def test_a_group_held_up_by_a_screen_is_counted_and_breaks_no_rule(mode: str, kept: int) -> None:
    payload = "buy widgets, " * 50
    buffer, peers, _ = await receive(
        [message("a", 0, ["right", "wrong"]), message("b", 0, [payload, "wrong"])],
        screens=TextScreens(TextLimits("off", 1.0, mode, 0.2)),  # type: ignore[arg-type]
        right=("right", payload),
    )
    by_author = {view.peer_id: view for view in peers.views(())}
    assert by_author["b"].screened == ({} if mode == "off" else {"repetitive": 1})
    assert by_author["a"].screened == {}
    assert (peers.accepted, peers.rejected) == (2, {})
    assert len(buffer.drawable()) == kept
