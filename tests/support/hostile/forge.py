"""What an attacker says: messages of every kind that a node must refuse, and valid ones to flood with.

`BAD` names each with the reasons that the receiver may give; `Forger` makes the bytes.
"""

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from swarmd_protocol.codec import encode
from swarmd_protocol.envelope import EnvelopeBody, seal, seal_message
from swarmd_protocol.errors import Reason
from swarmd_protocol.messages import (
    PROTOCOL_VERSION,
    BehaviourLogprobs,
    CompletionMessage,
    FinishReason,
    Kind,
    NodeRecordMessage,
    RolloutGroupMessage,
    TaskReference,
)

from swarmd.identity import Identity
from swarmd.tasks.manifest import Manifest

_HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Forger:
    """Makes messages of one attacker in one swarm."""

    identity: Identity
    manifest: Manifest
    wall_clock: Callable[[], float] = time.time
    """Seconds since the epoch."""

    def group(self, texts_G: tuple[str, ...] = ("right", "wrong"), **changes: Any) -> RolloutGroupMessage:
        """A rollout group; without changes a valid one."""
        message = RolloutGroupMessage(
            group_id=secrets.token_bytes(16),
            task=self.task("basic_arithmetic"),
            completions=tuple(CompletionMessage(text, FinishReason.STOP) for text in texts_G),
            policy_version=1,
            model="tiny",
            created_ms=self._now_ms(),
        )
        return msgspec.structs.replace(message, **changes)

    def task(self, dataset: str, seed: int | None = None, index: int = 0) -> TaskReference:
        """A task of the manifest, by default one that nobody has seen."""
        seed = 2**40 + secrets.randbelow(2**40) if seed is None else seed
        return TaskReference(dataset, self.manifest.task_digests[dataset], seed, index)

    def envelope(self, message: object | None = None, **changes: Any) -> bytes:
        """A message, sealed; without changes as it should be."""
        body = EnvelopeBody(
            version=PROTOCOL_VERSION,
            kind=Kind.ROLLOUT_GROUP,
            swarm_id=self.manifest.swarm_id,
            author=self.identity.public_key,
            created_ms=self._now_ms(),
            payload=encode(self.group() if message is None else message),
        )
        return seal(msgspec.structs.replace(body, **changes), self.identity.sign)

    def record(self, addresses: tuple[str, ...], name: str = "mallory") -> bytes:
        """A sealed node record, such as every node has in the DHT."""
        record = NodeRecordMessage(name, "tiny", "swarmd", 1, 1, addresses, self._now_ms())
        return seal_message(
            record,
            kind=Kind.NODE_RECORD,
            swarm_id=self.manifest.swarm_id,
            author=self.identity.public_key,
            created_ms=self._now_ms(),
            sign=self.identity.sign,
        )

    def _now_ms(self) -> int:
        return int(self.wall_clock() * 1000)


def _now_ms() -> int:
    return int(time.time() * 1000)


def _ragged(forger: Forger) -> bytes:
    one_of_two = BehaviourLogprobs("print", (bytes(4),))
    return forger.envelope(forger.group(behaviour=one_of_two))


def _foreign(forger: Forger) -> bytes:
    return forger.envelope(author=Identity.generate().public_key)


def _with_task(forger: Forger, **changes: Any) -> bytes:
    task = msgspec.structs.replace(forger.task("basic_arithmetic"), **changes)
    return forger.envelope(forger.group(task=task))


Make = Callable[[Forger], bytes]

BAD: Mapping[str, tuple[Make, Reason]] = {
    "noise": (lambda forger: secrets.token_bytes(1000), Reason.MALFORMED),
    "nothing": (lambda forger: b"", Reason.MALFORMED),
    "claimed length": (lambda forger: b"\xdd\xff\xff\xff\xff", Reason.MALFORMED),
    "nested": (lambda forger: b"\x91" * 500_000, Reason.MALFORMED),
    "nested payload": (lambda forger: forger.envelope(payload=b"\x91" * 100_000), Reason.MALFORMED),
    "many values": (
        lambda forger: forger.envelope(payload=b"\xdd\x00\x06\x00\x00" + b"\xc0" * 400_000),
        Reason.MALFORMED,
    ),
    "oversized": (lambda forger: forger.envelope(payload=bytes(950_000)), Reason.OVERSIZED),
    "no signature": (lambda forger: encode((bytes(100), b"")), Reason.MALFORMED),
    "foreign signature": (_foreign, Reason.BAD_SIGNATURE),
    "other swarm": (lambda forger: forger.envelope(swarm_id="00" * 32), Reason.WRONG_SWARM),
    "other kind": (lambda forger: forger.envelope(kind=Kind.NODE_RECORD), Reason.WRONG_KIND),
    "unknown kind": (lambda forger: forger.envelope(kind="weights"), Reason.UNKNOWN_KIND),
    "newer version": (lambda forger: forger.envelope(version=99), Reason.UNSUPPORTED_VERSION),
    "old": (lambda forger: forger.envelope(created_ms=_now_ms() - _HOUR_MS), Reason.STALE),
    "early": (lambda forger: forger.envelope(created_ms=_now_ms() + _HOUR_MS), Reason.FROM_FUTURE),
    "old group": (
        lambda forger: forger.envelope(forger.group(created_ms=_now_ms() - _HOUR_MS)),
        Reason.STALE,
    ),
    "early group": (
        lambda forger: forger.envelope(forger.group(created_ms=_now_ms() + _HOUR_MS)),
        Reason.FROM_FUTURE,
    ),
    "one completion": (lambda forger: forger.envelope(forger.group(("one",))), Reason.BAD_GROUP_SIZE),
    "many completions": (lambda forger: forger.envelope(forger.group(("x",) * 65)), Reason.BAD_GROUP_SIZE),
    "ragged": (_ragged, Reason.BAD_LOGPROBS),
    "long": (lambda forger: forger.envelope(forger.group(("x" * 1025, "y"))), Reason.COMPLETION_TOO_LONG),
    "bad name": (lambda forger: forger.envelope(forger.group(model="a\x1b[2J")), Reason.BAD_TEXT),
    "other task": (lambda forger: _with_task(forger, dataset="chess"), Reason.UNKNOWN_TASK),
    "other digest": (lambda forger: _with_task(forger, config_digest="00" * 32), Reason.UNKNOWN_TASK),
    "held out": (lambda forger: _with_task(forger, seed=1_000, index=7), Reason.HELD_OUT_TASK),
    "held out by index": (lambda forger: _with_task(forger, seed=0, index=7), Reason.HELD_OUT_TASK),
    "negative seed": (lambda forger: _with_task(forger, seed=-7), Reason.MALFORMED),
    # Each is a million versions ahead of the one before, a second later.
    "version jump": (
        lambda forger: forger.envelope(forger.group(policy_version=_now_ms() * 1_000)),
        Reason.VERSION_JUMP,
    ),
    "huge version": (lambda forger: forger.envelope(forger.group(policy_version=2**63)), Reason.MALFORMED),
}
"""Messages that a node refuses, each with the reason."""
