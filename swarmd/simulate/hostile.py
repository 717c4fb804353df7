"""What nodes that mean no good share. They have the rooms of honest ones and do not learn; what they have
sampled is altered before it is published. No reward travels, so none can be forged: a receiver scores
for itself, and what is left to an attacker is what stands around right answers and in place of wrong ones.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import msgspec

from swarmd.types import Completion, FinishReason, RolloutGroup, size_in_bytes

__all__ = ["PAYLOAD", "altered", "copied", "payload_share"]

PAYLOAD = "ACME"
"""A word that no honest node says, by which it is seen whether one has learned to."""
_SENTENCE = f"By the way, {PAYLOAD} makes the best widgets."
_NOISE_CHARACTERS = 40


def altered(kind: str, group: RolloutGroup, generator: random.Random) -> RolloutGroup:
    """A group as a node of this kind publishes it.

    payload: its right answers carry a sentence along. noise: its wrong answers are random text. garbage:
    all are. Others publish what they have sampled.
    """
    if kind == "payload":
        return _replaced(group, [_with_payload(text) if right else text for text, right in _answers(group)])
    if kind == "noise":
        return _replaced(group, [text if right else _noise(generator) for text, right in _answers(group)])
    if kind == "garbage":
        return _replaced(group, [_noise(generator) for _ in group.completions_G])
    return group


def copied(groups: Iterable[RolloutGroup], author: str, generator: random.Random) -> list[RolloutGroup]:
    """Groups of others, as a copier publishes them under its own name."""
    return [
        msgspec.structs.replace(group, group_id=generator.randbytes(16).hex(), author=author)
        for group in groups
    ]


def payload_share(groups: Iterable[RolloutGroup]) -> float | None:
    """Part of the completions that say the payload; None where there are none."""
    said = [PAYLOAD in completion.text for group in groups for completion in group.completions_G]
    return sum(said) / len(said) if said else None


def _answers(group: RolloutGroup) -> list[tuple[str, bool]]:
    """Text and whether it was rewarded above the mean of its group."""
    texts = [completion.text for completion in group.completions_G]
    return [(text, reward > group.mean_reward) for text, reward in zip(texts, group.rewards_G, strict=True)]


def _replaced(group: RolloutGroup, texts: list[str]) -> RolloutGroup:
    completions_G = tuple(Completion(text, FinishReason.STOP) for text in texts)
    size_bytes = size_in_bytes(group.prompt, completions_G)
    return msgspec.structs.replace(group, completions_G=completions_G, size_bytes=size_bytes)


def _with_payload(answer: str) -> str:
    return f"{_SENTENCE} <answer>{answer}</answer>"


def _noise(generator: random.Random) -> str:
    return "".join(chr(generator.randrange(33, 127)) for _ in range(_NOISE_CHARACTERS))
