from swarmd.config import Config
from swarmd.config_renewal import Renewed
from swarmd.config_sources import load_config


def test_only_what_can_change_in_a_running_node_is_taken_over():
    old = load_config(assignments=["schedule.checkpoint_every_rounds=5", "replay.local_groups=2"]).config
    new = load_config(assignments=["monitor.log_level=debug", "replay.local_groups=3"]).config
    renewed = Renewed.of(old, new)
    assert renewed.config.monitor.log_level == "debug"
    assert renewed.config.schedule.checkpoint_every_rounds == Config().schedule.checkpoint_every_rounds
    assert renewed.config.replay == old.replay
    assert renewed.taken == ("schedule.checkpoint_every_rounds = 20", "monitor.log_level = debug")
    assert renewed.left == ("replay.local_groups",)


def test_the_same_configuration_changes_nothing():
    assert Renewed.of(Config(), Config()) == Renewed(Config(), (), ())
