"""Nodes that mean no good, in a swarm and by themselves."""

import random

import pytest
from small_swarm import run

from swarmd.simulate.hostile import PAYLOAD, altered, copied, payload_share
from swarmd.simulate.plan import NodePlan
from swarmd.simulate.verifier import VerifierProcess
from swarmd.types import Completion, FinishReason, Prompt, RolloutGroup, TaskReference


@pytest.fixture
def group() -> RolloutGroup:
    completions_G = tuple(
        Completion(text, FinishReason.STOP, (1, 2), (-0.5, -0.1)) for text in ("7", "8", "9")
    )
    return RolloutGroup(
        group_id="00" * 16,
        author="me",
        is_local=True,
        task=TaskReference("basic_arithmetic", "00" * 32, 1, 2),
        prompt=Prompt("plain", "3 + 4 ="),
        completions_G=completions_G,
        rewards_G=(1.0, 0.0, 0.0),
        policy_version=3,
        created_at=0.0,
        received_at=0.0,
        size_bytes=100,
    )


def texts(group: RolloutGroup) -> list[str]:
    return [completion.text for completion in group.completions_G]


def test_a_payload_stands_around_right_answers_only(group: RolloutGroup) -> None:
    carrying = altered("payload", group, random.Random(0))
    right, *wrong = texts(carrying)
    assert PAYLOAD in right
    assert right.endswith("<answer>7</answer>")
    assert wrong == ["8", "9"]
    assert payload_share([group, carrying]) == pytest.approx(1 / 6)
    assert all(completion.logprobs_T is None for completion in carrying.completions_G)


def test_noise_takes_the_place_of_wrong_answers_and_garbage_of_all(group: RolloutGroup) -> None:
    assert texts(altered("noise", group, random.Random(0)))[0] == "7"
    assert "8" not in texts(altered("noise", group, random.Random(0)))
    assert not {"7", "8", "9"} & set(texts(altered("garbage", group, random.Random(0))))


def test_an_honest_group_stays_as_it_is_and_a_copy_has_another_name(group: RolloutGroup) -> None:
    assert altered("honest", group, random.Random(0)) is group
    (copy,) = copied([group], "mallory", random.Random(0))
    assert (copy.author, texts(copy)) == ("mallory", texts(group))
    assert copy.group_id != group.group_id


def test_what_honest_nodes_make_of_hostile_ones(verifier: VerifierProcess) -> None:
    kinds = ("honest", "honest", "copier", "forger", "garbage", "payload", "silent")
    nodes = run(verifier, "3/2", rounds=4, nodes=tuple(NodePlan(kind=kind) for kind in kinds))
    by_kind = dict(zip(kinds, nodes, strict=True))
    for node in nodes[:2]:
        assert node.rejected[by_kind["copier"].peer_id].keys() == {"duplicate"}
        assert node.rejected[by_kind["forger"].peer_id] == {"bad_signature": 12}
        assert node.accepted[by_kind["garbage"].peer_id] == 12
        assert node.accepted[by_kind["payload"].peer_id] == 12
        assert by_kind["silent"].peer_id not in node.accepted
        assert {row.payload_share for row in node.rows} == {0.0}
    assert all(row.updates == 0 for kind in kinds[2:6] for row in by_kind[kind].rows)
    assert by_kind["silent"].rows[-1].updates > 0
