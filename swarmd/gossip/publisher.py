"""Publishing own rollout groups: message, seal, size check, gossip.

A group is never published short. One that is too large goes without its log-probabilities, then in
parts that are each a valid group; where that is not possible it is refused and the reason returned.
Nothing is sent that an honest peer would have to reject.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
from swarmd_protocol.codec import pack_logprobs
from swarmd_protocol.envelope import Sign, seal_message
from swarmd_protocol.errors import ProtocolError, Reason
from swarmd_protocol.messages import BehaviourLogprobs, CompletionMessage, Kind, RolloutGroupMessage
from swarmd_protocol.topics import rollouts_topic
from swarmd_protocol.validation import GroupLimits, check_group

from swarmd.errors import NetworkError
from swarmd.gossip.catch_up import RecentGroups
from swarmd.gossip.transport import Transport
from swarmd.types import RolloutGroup

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Author:
    """Who signs: this node in one swarm."""

    swarm_id: str
    public_key: bytes
    """Ed25519, 32 bytes."""
    sign: Sign

    def seal(self, message: object, kind: Kind, now_ms: int) -> bytes:
        """The sealed envelope of a message. Raises ProtocolError when it cannot be encoded."""
        return seal_message(
            message,
            kind=kind,
            swarm_id=self.swarm_id,
            author=self.public_key,
            created_ms=now_ms,
            sign=self.sign,
        )


class PublisherStats(msgspec.Struct):
    """What was published since the start."""

    groups: int = 0
    """Groups that went out whole or in parts."""
    messages: int = 0
    bytes: int = 0
    without_logprobs: int = 0
    """Groups that went without their log-probabilities because of their size."""
    in_parts: int = 0
    """Groups that were split."""
    not_sent: int = 0
    """Groups that were ready while the network was down; peers can still catch up on them."""


class Publisher:
    """Publishes groups on the swarm's topic.

    Args:
        transport: where to.
        author: seals.
        limits: what peers accept; checked before sending.
        max_message_bytes: of the manifest.
        model: the name of the policy, as told to peers.
        tokenizer_fingerprint: published with log-probabilities; None: none are published.
        recent: holds what was published for peers that catch up.
    """

    def __init__(
        self,
        transport: Transport,
        author: Author,
        limits: GroupLimits,
        max_message_bytes: int,
        model: str,
        tokenizer_fingerprint: str | None,
        recent: RecentGroups,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.stats = PublisherStats()
        self._transport = transport
        self._author = author
        self._limits = limits
        self._max_message_bytes = max_message_bytes
        self._model = model
        self._tokenizer_fingerprint = tokenizer_fingerprint
        self._recent = recent
        self._wall_clock = wall_clock
        self._topic = rollouts_topic(author.swarm_id)

    async def publish(self, group: RolloutGroup) -> Reason | None:
        """Publish a group. Returns why it cannot be published, or None.

        A network that is down is no reason: it is counted in the statistics, and the group can
        still be had by catch-up.
        """
        now_ms = int(self._wall_clock() * 1000)
        try:
            message = self._message(group, now_ms)
            reason = check_group(message, self._limits, now_ms)
            envelopes = [] if reason else self._fit(message, now_ms)
        except ProtocolError as error:
            log.warning("a group cannot be published: %s", error)
            return Reason.BAD_TEXT
        if reason is not None or not envelopes:
            return reason or Reason.TOO_LARGE_TO_PUBLISH
        self.stats.groups += 1
        self.stats.in_parts += len(envelopes) > 1
        for envelope in envelopes:
            self._recent.add(envelope, message.created_ms, self._author.public_key)
        try:
            for envelope in envelopes:
                await self._transport.publish(self._topic, envelope)
                self.stats.messages += 1
                self.stats.bytes += len(envelope)
        except NetworkError as error:
            log.debug("a group was not sent: %s", error)
            self.stats.not_sent += 1
        return None

    def _message(self, group: RolloutGroup, now_ms: int) -> RolloutGroupMessage:
        return RolloutGroupMessage(
            group_id=bytes.fromhex(group.group_id),
            task=group.task,
            completions=tuple(
                CompletionMessage(completion.text, completion.finish_reason)
                for completion in group.completions_G
            ),
            policy_version=group.policy_version,
            model=self._model,
            created_ms=min(int(group.created_at * 1000), now_ms),
            behaviour=self._behaviour(group),
        )

    def _behaviour(self, group: RolloutGroup) -> BehaviourLogprobs | None:
        if self._tokenizer_fingerprint is None:
            return None
        blocks = [completion.logprobs_T for completion in group.completions_G]
        if not all(blocks):
            return None
        return BehaviourLogprobs(
            self._tokenizer_fingerprint, tuple(pack_logprobs(block) for block in blocks if block)
        )

    def _fit(self, message: RolloutGroupMessage, now_ms: int) -> list[bytes]:
        """Envelopes that together carry the whole group, each small enough; empty when impossible."""
        whole = self._seal(message, now_ms)
        if len(whole) <= self._max_message_bytes:
            return [whole]
        if message.behaviour is not None:
            envelopes = self._fit(msgspec.structs.replace(message, behaviour=None), now_ms)
            self.stats.without_logprobs += bool(envelopes)
            return envelopes
        # Fewest parts first: advantages are computed within a part.
        for parts in range(2, len(message.completions) // self._limits.group_size_min + 1):
            envelopes = [self._seal(part, now_ms) for part in _split(message, parts)]
            if all(len(envelope) <= self._max_message_bytes for envelope in envelopes):
                return envelopes
        return []

    def _seal(self, message: RolloutGroupMessage, now_ms: int) -> bytes:
        return self._author.seal(message, Kind.ROLLOUT_GROUP, now_ms)


def _split(message: RolloutGroupMessage, parts: int) -> Iterator[RolloutGroupMessage]:
    """The group in that many parts of nearly equal size, each with an id of its own."""
    total = len(message.completions)
    for part in range(parts):
        start, end = part * total // parts, (part + 1) * total // parts
        yield msgspec.structs.replace(
            message,
            group_id=secrets.token_bytes(len(message.group_id)),
            completions=message.completions[start:end],
        )
