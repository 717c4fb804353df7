"""Every control of the experiment does what its name says."""

from small_swarm import run

from swarmd.simulate.plan import NodePlan
from swarmd.simulate.verifier import VerifierProcess


def test_redrawing_goes_on_until_all_own_groups_have_signal_or_the_bound(verifier: VerifierProcess) -> None:
    nodes = run(verifier, "3/0+redraw", rounds=3)
    rows = [row for node in nodes for row in node.rows]
    for row in rows:
        assert row.groups_own == 3
        assert row.groups_with_signal == min(3, row.own_groups_with_signal)
        assert 3 <= row.groups_generated <= 12
        assert row.own_groups_with_signal >= 3 or row.groups_generated == 12
    assert any(row.groups_generated > 3 for row in rows)


def test_a_node_that_replays_its_own_groups_hears_nobody(verifier: VerifierProcess) -> None:
    for node in run(verifier, "2+2self", rounds=3):
        assert node.accepted == {}
        assert node.rows[0].groups_external == 0
        assert sum(row.groups_external for row in node.rows) > 0


def test_frozen_peers_share_and_never_learn(verifier: VerifierProcess) -> None:
    learner, other, frozen = run(verifier, "2/2+frozen", rounds=2)
    assert set(learner.accepted) == set(other.accepted) == {frozen.peer_id}
    assert [row.kind for row in frozen.rows] == ["frozen"] * 2
    assert [row.updates for row in frozen.rows] == [0, 0]
    assert all(row.groups_generated == 2 for row in frozen.rows)
    assert learner.rows[-1].updates > 0


def test_with_a_lag_nothing_of_a_peer_is_there_sooner(verifier: VerifierProcess) -> None:
    for node in run(verifier, "2/2+lag2", rounds=4):
        assert [row.groups_external for row in node.rows[:2]] == [0, 0]
        assert sum(row.groups_external for row in node.rows[2:]) > 0


def test_a_budget_of_groups_ends_when_they_are_sampled(verifier: VerifierProcess) -> None:
    for node in run(verifier, "2/2+groups", rounds=2):
        sampled = [row.groups_generated for row in node.rows]
        assert sum(sampled) >= 8 > sum(sampled[:-1])


def test_a_budget_of_updates_ends_when_they_are_taken(verifier: VerifierProcess) -> None:
    for node in run(verifier, "1/0+updates", rounds=2):
        assert node.rows[-1].updates == 2
        assert node.rows[-2].updates < 2
        assert len(node.rows) > 2


def test_a_node_that_only_learns_from_peers_samples_what_they_lack(verifier: VerifierProcess) -> None:
    for node in run(verifier, "0/3", rounds=3):
        assert all(row.groups_own == row.groups_filled == row.groups_generated for row in node.rows)
        assert all(row.groups_own + row.groups_external == 3 for row in node.rows)
        assert node.rows[0].groups_external == 0
        assert sum(row.groups_external for row in node.rows) > 0


def test_nodes_may_be_slow_late_and_special(verifier: VerifierProcess) -> None:
    plans = (
        NodePlan(),
        NodePlan(speed=0.5),
        NodePlan(joins=1.0),
        NodePlan(tasks={"basic_arithmetic": 1.0, "bf": 1.0}, model="tiny-weak"),
    )
    usual, slow, late, special = run(verifier, "2/1", rounds=2, nodes=plans)
    assert [row.virtual_seconds for row in slow.rows] == [2.0]
    assert [(row.kind, row.virtual_seconds) for row in late.rows] == [("late", 2.0)]
    asked = {dataset for row in special.rows for dataset in row.own_reward_by_task}
    assert asked == {"basic_arithmetic", "bf"}
    assert usual.accepted[special.peer_id] == sum(row.groups_generated for row in special.rows)
