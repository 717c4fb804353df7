"""The receive loop: messages that passed envelope and manifest checks become rollout groups. The
task is regenerated here and the completions are scored here: nothing a peer says about question,
answer or reward is believed.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from swarmd_protocol.codec import unpack_logprobs
from swarmd_protocol.errors import Reason
from swarmd_protocol.messages import RolloutGroupMessage

from swarmd.errors import WorkerError
from swarmd.gossip.peers import PeerBook
from swarmd.gossip.shares import PeerShares
from swarmd.gossip.subscriber import OpenedGroup, Subscriber
from swarmd.loops.state import LoopState
from swarmd.replay.buffer import Drop, ReplayBuffer
from swarmd.replay.screens import TextScreens
from swarmd.rewards.messages import ScoreReason
from swarmd.rewards.verifier import VerifierPool
from swarmd.tasks.manifest import Manifest
from swarmd.tasks.prompt import render
from swarmd.types import Completion, RolloutGroup, size_in_bytes

LOOP = "receive"

# What the buffer refuses that the peer's own counters should show. The rest is no fault of a peer.
_PEER_REASONS = {Drop.DUPLICATE: Reason.DUPLICATE, Drop.TOO_LARGE: Reason.OVERSIZED, Drop.STALE: Reason.STALE}


@dataclass(frozen=True)
class ReceiveLoop:
    """Scores what peers published and offers it to the buffer."""

    manifest: Manifest
    subscriber: Subscriber
    verifier: VerifierPool
    buffer: ReplayBuffer
    peers: PeerBook
    verifiers: int
    """Groups scored at the same time."""
    shares: PeerShares | None = None
    """Told how long scoring took. None: everybody has as much as there is."""
    screens: TextScreens | None = None
    """Judge groups by their text; a group that one drops is valid all the same. None: no screens."""
    tokenizer_fingerprint: str | None = None
    """Log-probabilities are kept from senders whose tokenizer has this fingerprint; None: from nobody."""

    async def run(self, state: LoopState) -> None:
        """Receive until the subscription ends."""
        async with asyncio.TaskGroup() as lanes:
            for _ in range(self.verifiers):
                lanes.create_task(self._lane(state))

    async def _lane(self, state: LoopState) -> None:
        async for opened in self.subscriber:
            try:
                group = await self._receive(opened, state)
            except WorkerError as error:
                await state.note_failure(LOOP, error)
                group = Reason.SCORING_FAILED
            else:
                state.problems.pop(LOOP, None)
            finally:
                self.subscriber.done(opened)
            if isinstance(group, RolloutGroup):
                self.peers.note_accepted(opened.author, useful=group.has_signal)
                state.notify()
            else:
                self.peers.note_rejected(opened.author, group)

    async def _receive(self, opened: OpenedGroup, state: LoopState) -> RolloutGroup | Reason:
        message = opened.message
        texts_G = tuple(completion.text for completion in message.completions)
        began = time.monotonic()
        score = await self.verifier.score(message.task, texts_G)
        if self.shares is not None:
            self.shares.charge_verifier(opened.author, score.seconds or time.monotonic() - began)
        if score.question is None:
            crashed = ScoreReason.CRASHED in score.reasons_G
            return Reason.SCORING_FAILED if crashed else Reason.NOT_REGENERATED
        prompt = render(score.question, self.manifest)
        completions_G = self._completions(message)
        created_at = message.created_ms / 1000
        group = RolloutGroup(
            group_id=message.group_id.hex(),
            author=opened.author,
            is_local=False,
            task=message.task,
            prompt=prompt,
            completions_G=completions_G,
            rewards_G=score.rewards_G,
            policy_version=message.policy_version,
            created_at=created_at,
            # A group that was caught up on has the age its author says, within the limits checked before.
            received_at=state.clock.monotonic() - max(0.0, state.clock.wall() - created_at),
            size_bytes=size_in_bytes(prompt, completions_G),
        )
        state.external_since_round.add(group.mean_reward)
        if self._is_screened(group):
            return group
        payers = self.shares.payers(opened.author) if self.shares is not None else None
        dropped = self.buffer.add_external(group, payers)
        return _PEER_REASONS.get(dropped, group) if dropped is not None else group

    def _is_screened(self, group: RolloutGroup) -> bool:
        """Whether a screen drops the group. What holds it up is counted for its author."""
        if self.screens is None:
            return False
        found, is_dropped = self.screens.judge(group)
        for screen in found:
            self.peers.note_screened(group.author, screen)
        return is_dropped

    def _completions(self, message: RolloutGroupMessage) -> tuple[Completion, ...]:
        behaviour = message.behaviour
        if behaviour is None or behaviour.tokenizer_fingerprint != self.tokenizer_fingerprint:
            return tuple(Completion(c.text, c.finish_reason) for c in message.completions)
        return tuple(
            Completion(c.text, c.finish_reason, logprobs_T=unpack_logprobs(values))
            for c, values in zip(message.completions, behaviour.values, strict=True)
        )
