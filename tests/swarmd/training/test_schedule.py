import pytest

from swarmd.errors import ConfigError
from swarmd.training.messages import TrainingOptions
from swarmd.training.schedule import learning_rate


def rates(steps, **options):
    return [learning_rate(TrainingOptions(learning_rate=1.0, **options), step) for step in steps]


def test_warm_up_rises_linearly_and_then_the_constant_rate_stays():
    assert rates(range(6), warmup_steps=4) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_reaches_zero_at_the_end_and_stays_there():
    options = {"warmup_steps": 2, "schedule": "linear", "schedule_steps": 6}
    assert rates([1, 2, 3, 4, 5, 6, 7, 100], **options) == [1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0, 0.0]


def test_cosine_is_half_way_down_in_the_middle():
    options = {"warmup_steps": 0, "schedule": "cosine", "schedule_steps": 8}
    assert rates([0, 4, 8, 9], **options) == pytest.approx([1.0, 0.5, 0.0, 0.0])


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_schedule_that_ends_before_the_warm_up_is_a_config_error(schedule):
    with pytest.raises(ConfigError, match="schedule_steps must be above"):
        TrainingOptions(schedule=schedule, warmup_steps=10, schedule_steps=10)
