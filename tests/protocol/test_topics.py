from swarmd_protocol.topics import CATCH_UP_PROTOCOL, manifest_key, node_records_key, rollouts_topic

SWARM_ID = "5a" * 32


def test_names_are_those_of_the_specification():
    assert rollouts_topic(SWARM_ID) == f"/swarmd/1/{SWARM_ID}/rollouts"
    assert node_records_key(SWARM_ID) == f"/swarmd/1/{SWARM_ID}/nodes"
    assert manifest_key(SWARM_ID) == f"/swarmd/1/{SWARM_ID}/manifest"
    assert CATCH_UP_PROTOCOL == "/swarmd/1/catch-up"


def test_two_swarms_share_no_name():
    for name in (rollouts_topic, node_records_key, manifest_key):
        assert name(SWARM_ID) != name("5b" * 32)
