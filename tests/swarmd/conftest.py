"""Rollout groups for tests of several rooms."""

from collections.abc import Callable

import pytest

from swarmd.types import Completion, FinishReason, Prompt, RolloutGroup, TaskReference

MakeGroup = Callable[..., RolloutGroup]


@pytest.fixture(scope="session")
def make_group() -> MakeGroup:
    """A factory: `make_group(number, author, rewards=..., version=..., received_at=..., size_bytes=...)`.
    Author `self` makes it a local group.
    """

    def make(
        number: int,
        author: str = "peer",
        *,
        rewards: tuple[float, ...] = (0.0, 1.0),
        version: int = 0,
        received_at: float = 1000.0,
        size_bytes: int = 100,
    ) -> RolloutGroup:
        return RolloutGroup(
            group_id=f"{number:032x}",
            author=author,
            is_local=author == "self",
            task=TaskReference("basic_arithmetic", "digest", 7, number),
            prompt=Prompt("plain", "1 + 1"),
            completions_G=tuple(
                Completion(f"{author} {number} {i}", FinishReason.STOP) for i in range(len(rewards))
            ),
            rewards_G=rewards,
            policy_version=version,
            created_at=0.0,
            received_at=received_at,
            size_bytes=size_bytes,
        )

    return make
