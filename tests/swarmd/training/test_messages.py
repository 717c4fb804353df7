import msgspec
import pytest

from swarmd.config import TrainingSection
from swarmd.training.messages import StepRequest, TrainingOptions


def test_options_are_the_training_section_of_the_config_without_what_is_about_the_process():
    section = TrainingSection().options()
    assert {*TrainingSection.model_fields} - {*section} == {
        *("timeout_seconds", "device", "memory_share"),
        "tokens_at_once",  # The machine decides.
    }
    # By itself the trainer leaves nothing out.
    plain = {"unlikely": "off", "external": "reencode", "tokens_at_once": 4096}
    assert msgspec.structs.asdict(TrainingOptions()) == section | plain
    assert TrainingOptions(**section) == TrainingOptions(unlikely="drop", external="f_tis")


@pytest.mark.parametrize("is_own", [True, False])
def test_groups_reach_the_trainer_process_unchanged(make_group, make_policy, is_own):
    request = StepRequest((make_group({"7": 1, "ünïcode\n": 0}, make_policy() if is_own else None),))
    encoded = msgspec.msgpack.encode(request)
    assert msgspec.msgpack.decode(encoded, type=StepRequest) == request
