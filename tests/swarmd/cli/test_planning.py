import pytest

from swarmd.cli import planning
from swarmd.cli.planning import plan_for
from swarmd.config_sources import load_config
from swarmd.models.catalogue import CATALOGUE
from swarmd.models.machine import Machine
from swarmd.tasks.manifest import Manifest

GB = 10**9
MODEL = CATALOGUE["qwen2.5-0.5b"]


@pytest.fixture
def plan(monkeypatch):
    """Plans a model of half a billion parameters on a CPU with so many free GB."""

    def run(free: float, *assignments: str):
        machine = Machine(256 * GB, int(free * GB), has_bfloat16=True)
        monkeypatch.setattr(planning, "probe_machine", lambda *, with_gpus: machine)
        engine = "generation.engine=transformers"
        config = load_config(assignments=[engine, "model.device=cpu", *assignments]).config
        return plan_for(config, Manifest.load(MODEL.manifest), MODEL.name, MODEL.shape)

    return run


def test_by_itself_the_trainer_forwards_as_much_as_memory_allows_and_says_so(plan):
    assert plan(100).tokens_at_once == 4096
    assert "tokens at once" not in plan(100).trainer.why
    short = plan(22)
    assert short.tokens_at_once == 1024
    assert short.trainer.why.endswith("; 1024 tokens at once, as memory allows")
    assert short.trainer.needs_bytes < plan(100).trainer.needs_bytes


def test_a_number_that_was_set_is_kept(plan):
    assert plan(100, "training.tokens_at_once=300").tokens_at_once == 300
    assert plan(22, "training.tokens_at_once=4096", "model.check_memory=false").tokens_at_once == 4096
