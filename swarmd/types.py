"""The nouns that rooms hand to each other. All are frozen and cross process borders as MessagePack.

Shapes in names: B batch, T tokens, G completions of a group.
"""

from __future__ import annotations

import msgspec
from swarmd_protocol.messages import FinishReason, TaskReference

__all__ = [
    "Completion",
    "FinishReason",
    "Prompt",
    "RolloutGroup",
    "SampledGroup",
    "TaskReference",
    "TaskSpec",
    "WeightHandle",
    "size_in_bytes",
]


class Prompt(msgspec.Struct, frozen=True):
    """What the policy is asked. `style` says how text becomes tokens.

    plain: `text` is tokenized as it stands. chat: `system` and `text` go through the tokenizer's
    chat template as a system and a user message, with the generation prompt appended.
    """

    style: str
    text: str
    system: str | None = None


class Completion(msgspec.Struct, frozen=True):
    """One answer. Tokens are known only for the node's own completions."""

    text: str
    finish_reason: FinishReason
    token_ids_T: tuple[int, ...] | None = None
    """The sampled tokens, the end token included when `finish_reason` is stop."""
    logprobs_T: tuple[float, ...] | None = None
    """Log-probability (nats) of each sampled token under the policy that sampled it. For a peer's
    completion: what the peer says, where its tokenizer is the same and that is asked for."""
    versions_T: tuple[int, ...] | None = None
    """Policy version that each token was sampled from, where it changed within the completion. None:
    that of the group throughout."""


class SampledGroup(msgspec.Struct, frozen=True):
    """What the generator returns for one prompt."""

    completions_G: tuple[Completion, ...]
    policy_version: int
    """The oldest that a token of the group was sampled from."""


class RolloutGroup(msgspec.Struct, frozen=True):
    """One task, all completions one policy sampled for it, and the rewards this node gave them."""

    group_id: str
    """Hex. Unique for an author."""
    author: str
    """Peer id of the node that sampled it."""
    is_local: bool
    task: TaskReference
    prompt: Prompt
    completions_G: tuple[Completion, ...]
    rewards_G: tuple[float, ...]
    policy_version: int
    """Of the author's policy. Versions of different authors cannot be compared."""
    created_at: float
    """Author's wall clock, seconds since the Unix epoch."""
    received_at: float
    """This node's monotonic clock, seconds. Ages are counted from here."""
    size_bytes: int
    """What the group occupies in the buffer, as `size_in_bytes` estimates it."""
    merged_rewards: tuple[float, ...] = ()
    """Rewards of the groups it is merged with in a batch: mean and deviation are over them too."""

    @property
    def has_signal(self) -> bool:
        """Whether the rewards differ, so that advantages within the group are not all zero."""
        return max(self.rewards_G) > min(self.rewards_G)

    @property
    def mean_reward(self) -> float:
        """Mean reward of the group's completions."""
        return sum(self.rewards_G) / len(self.rewards_G)


BYTES_PER_TOKEN = 64
"""A token id and its log-probability as Python objects."""


def size_in_bytes(prompt: Prompt, completions_G: tuple[Completion, ...]) -> int:
    """Estimate of the memory that a group occupies: its text, and the tokens where they are known."""
    characters = len(prompt.text) + sum(len(completion.text) for completion in completions_G)
    tokens = sum(len(completion.token_ids_T or completion.logprobs_T or ()) for completion in completions_G)
    # Python holds text with any character beyond U+FFFF at four bytes a character.
    return 4 * characters + BYTES_PER_TOKEN * tokens


class TaskSpec(msgspec.Struct, frozen=True):
    """One kind of task of a manifest: a reasoning-gym dataset with a fixed configuration."""

    dataset: str
    config: dict[str, object]
    """Keyword arguments of the dataset, without seed and size."""
    weight: float
    """Relative share of draws."""
    digest: str
    """What a task reference names as `config_digest`."""


class WeightHandle(msgspec.Struct, frozen=True):
    """Where the trainer publishes weights. Plain data, so that the daemon can pass it on."""

    kind: str
    """shared_memory, file or cuda_ipc."""
    name: str
    """Name of the shared memory, or path of the file."""
