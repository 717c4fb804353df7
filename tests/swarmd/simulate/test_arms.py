import pytest

from swarmd.errors import ConfigError
from swarmd.simulate.arms import parse_arm, parse_arms
from swarmd.simulate.plan import NetworkPlan, NodePlan, SwarmPlan

SWARM = SwarmPlan(nodes=(NodePlan(),) * 3, rounds=5, seed=0, network=NetworkPlan((0.5, 1.0), 0.1))


def test_an_arm_is_read_with_its_options_and_settings() -> None:
    arm = parse_arm("6/2+redraw+groups:training.external=mask,replay.max_uses=2")
    assert (arm.local, arm.external, arm.is_redrawn, arm.budget) == (6, 2, True, "groups")
    assert arm.assignments == [
        "replay.local_groups=6",
        "replay.external_groups=2",
        "training.external=mask",
        "replay.max_uses=2",
    ]


def test_commas_part_arms_and_settings_of_one_arm() -> None:
    arms = parse_arms("8/0, 4/4:training.external=mask,training.learning_rate=1e-4,4+4self")
    assert [arm.name for arm in arms] == [
        "8/0",
        "4/4:training.external=mask,training.learning_rate=1e-4",
        "4+4self",
    ]


def test_a_plain_arm_changes_nothing_of_the_swarm() -> None:
    assert parse_arm("4/4").of(SWARM) == SWARM


def test_frozen_peers_are_as_many_as_a_node_has_peers() -> None:
    frozen = parse_arm("4/4+frozen").of(SWARM)
    assert [node.kind for node in frozen.nodes] == ["honest"] * 3 + ["frozen"] * 2
    assert not frozen.learners_share


def test_a_lag_is_on_top_of_the_delay() -> None:
    assert parse_arm("4/4+lag8").of(SWARM).network == NetworkPlan((8.5, 9.0), 0.1)


def test_own_groups_are_replayed() -> None:
    arm = parse_arm("4+4self")
    assert (arm.local, arm.external) == (4, 4)
    assert arm.of(SWARM).replay_own
    assert not arm.of(SWARM).learners_share


@pytest.mark.parametrize(
    "text",
    ["", "4", "4-4", "0/0", "4/4x", "4/4+", "4/4+frosen", "4/4+lag", "4/4:mask", "4/4,4/4", "a/b", "4+4"],
)
def test_what_is_no_arm_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--arms"):
        parse_arms(text)
