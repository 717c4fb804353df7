from swarmd.config import Config
from swarmd.config_renewal import RENEWABLE, Renewed
from swarmd.config_sources import known_keys, load_config


def test_only_what_can_change_in_a_running_node_is_taken_over():
    old = load_config(assignments=["schedule.checkpoint_every_rounds=5", "replay.local_groups=2"]).config
    new = load_config(assignments=["monitor.log_level=debug", "replay.local_groups=3"]).config
    renewed = Renewed.of(old, new)
    assert renewed.config.monitor.log_level == "debug"
    assert renewed.config.schedule.checkpoint_every_rounds == Config().schedule.checkpoint_every_rounds
    assert renewed.config.replay == old.replay
    assert renewed.taken == ("schedule.checkpoint_every_rounds = 20", "monitor.log_level = debug")
    assert renewed.left == ("replay.local_groups",)


def test_what_a_reload_takes_over_are_keys_that_exist():
    assert set(known_keys()) >= RENEWABLE
    assert {"swarm.join", "peers.close_below", "screens.long"} <= RENEWABLE
    assert "peers.exempt_networks" not in RENEWABLE


def test_the_same_configuration_changes_nothing():
    assert Renewed.of(Config(), Config()) == Renewed(Config(), (), ())
