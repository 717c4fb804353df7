"""The page on sampling: its rule runs as it stands, and its table has all rules."""

import random
import re
from pathlib import Path

import pytest

from swarmd.config import SAMPLER_NAMES
from swarmd.config_sources import load_config
from swarmd.replay.rules import Candidate, Draw, answer
from swarmd.replay.samplers import load_rule
from swarmd.types import Completion, FinishReason, Prompt, RolloutGroup, TaskReference

PAGE = (Path(__file__).parents[2] / "docs" / "sampling.md").read_text()


def candidate(number: int, dataset: str, rewards: tuple[float, ...]) -> Candidate:
    return Candidate(
        RolloutGroup(
            group_id=f"{number:032x}",
            author="peer",
            is_local=False,
            task=TaskReference(dataset, "digest", 7, number),
            prompt=Prompt("plain", "1 + 1"),
            completions_G=tuple(Completion(str(reward), FinishReason.STOP) for reward in rewards),
            rewards_G=rewards,
            policy_version=0,
            created_at=0.0,
            received_at=0.0,
            size_bytes=100,
        )
    )


def test_the_page_has_the_rules_that_there_are() -> None:
    table = PAGE.partition("| `replay.sampler` |")[2].partition("\n\n")[0]
    assert tuple(re.findall(r"^\| `([a-z]+)` \|", table, flags=re.MULTILINE)) == SAMPLER_NAMES


def test_the_rule_of_the_page_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    (name,) = re.findall(r"swarmd start --set replay\.sampler=(\S+)", PAGE)
    assert len(code.splitlines()) <= 20
    (tmp_path / f"{name.partition(':')[0]}.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    rule = load_rule(load_config(assignments=[f"replay.sampler={name}"]).config.replay.sampler)
    rewards = [(1.0, 1.0, 0.0), (0.0, 0.0, 1.0)]
    candidates = tuple(candidate(n, "ab"[n // 4], rewards[n % 2]) for n in range(8))
    chosen = answer(rule, Draw(candidates, 4, (), random.Random(0)))
    assert [c.group.mean_reward for c in chosen] == pytest.approx([1 / 3] * 4)
    assert sorted(c.group.task.dataset for c in chosen) == ["a", "a", "b", "b"]
