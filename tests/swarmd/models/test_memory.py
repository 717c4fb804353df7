import pytest

from swarmd.errors import ConfigError, MemoryShortError
from swarmd.models.fit import NEAR, check_fit, widest
from swarmd.models.machine import Gpu, Machine
from swarmd.models.memory import HOST, Workload, estimate_memory, usual_cache_bytes
from swarmd.models.placement import Place, Placement
from swarmd.models.shape import ModelShape

GB = 10**9
HALF_BILLION = ModelShape(494_032_768, 151_936, 896, 4864, 24, 14, 2, 64, 32_768, is_tied=True)
WORK = Workload("transformers", rows=32, row_tokens=512, tokens_at_once=4096)
CPU = Placement(Place("cpu", "float32", 1.0, ""), Place("cpu", "float32", 1.0, ""))


def on_gpus(generator: str, trainer: str, shares=(0.4, 0.5)) -> Placement:
    return Placement(Place(generator, "bfloat16", shares[0], ""), Place(trainer, "bfloat16", shares[1], ""))


def items(estimate, process, place=HOST):
    return {
        item.what: item.size_bytes
        for need in estimate.needs
        if (need.process, need.place) == (process, place)
        for item in need.items
    }


def test_weights_gradients_and_adam_take_sixteen_bytes_a_parameter():
    trainer = items(estimate_memory(HALF_BILLION, CPU, WORK), "trainer")
    assert trainer["weights"] + trainer["gradients"] + trainer["optimizer"] == 16 * HALF_BILLION.parameters


def test_each_setting_that_saves_memory_does():
    whole = estimate_memory(HALF_BILLION, CPU, WORK).of("trainer")
    saving = {
        "tokens_at_once": 1024,
        "is_recomputed": True,
        "optimizer": "adamw_8bit",
        "lora_rank": 16,
    }
    for field, value in saving.items():
        changed = Workload(**{**vars(WORK), field: value})
        assert estimate_memory(HALF_BILLION, CPU, changed).of("trainer") < 0.9 * whole, field
    more = Workload(**{**vars(WORK), "has_reference": True})
    assert estimate_memory(HALF_BILLION, CPU, more).of("trainer") == whole + 4 * HALF_BILLION.parameters


def test_on_gpus_each_process_is_counted_where_it_computes():
    estimate = estimate_memory(HALF_BILLION, on_gpus("cuda:1", "cuda:0"), WORK)
    assert estimate.of("trainer", "cuda:0") > 16 * HALF_BILLION.parameters
    assert estimate.of("generator", "cuda:1") > 2 * HALF_BILLION.parameters
    assert (estimate.of("trainer", "cuda:1"), estimate.of("generator", "cuda:0")) == (0, 0)
    # The weight channel is in the machine's memory: two versions, as the generator reads them.
    assert items(estimate, "trainer")["weight channel"] == 4 * HALF_BILLION.parameters


def test_vllm_takes_its_processes_and_a_cache():
    vllm = Workload(**{**vars(WORK), "engine": "vllm"})
    assert items(estimate_memory(HALF_BILLION, CPU, vllm), "generator")["cache"] == 1 << 30
    small = Workload(**{**vars(vllm), "kv_cache_bytes": 1 << 28})
    assert items(estimate_memory(HALF_BILLION, CPU, small), "generator")["cache"] == 1 << 28
    assert usual_cache_bytes(token_bytes=100, context_tokens=512, room_bytes=1 << 30) == 64 * 512 * 100


def machine(free: float, total: float = 256, gpus: tuple[Gpu, ...] = ()) -> Machine:
    return Machine(int(total * GB), int(free * GB), gpus)


def check(of: Machine, placement: Placement = CPU, workload: Workload = WORK) -> tuple[str, ...]:
    return check_fit(
        "half", of, placement, workload, lambda changed: estimate_memory(HALF_BILLION, placement, changed)
    )


def test_what_fits_says_nothing_and_what_barely_fits_warns():
    needed = estimate_memory(HALF_BILLION, CPU, WORK).at(HOST) / GB
    assert check(machine(free=2 * needed)) == ()
    (warning,) = check(machine(free=1.05 * needed))
    assert "memory may run out" in warning


@pytest.mark.parametrize(
    ("free", "advice"),
    [
        (22, "--set training.tokens_at_once=1024"),
        (22, "--set training.gradient_checkpointing=true"),
        (27, "or --set training.lora_rank=16"),
        (
            15.5,
            "--set training.tokens_at_once=1024 --set training.gradient_checkpointing=true "
            "--set training.optimizer=adamw_8bit --set training.lora_rank=16",
        ),
        (3, "choose a smaller model; no setting makes this one fit"),
    ],
)
def test_what_does_not_fit_is_one_line_with_numbers_and_what_to_do(free, advice):
    with pytest.raises(MemoryShortError) as caught:
        check(machine(free))
    line = str(caught.value)
    assert caught.value.exit_code == 1
    assert f"{free:.1f} GB are free" in line
    assert "optimizer 4.0" in line
    assert advice in line
    assert "\n" not in line


def test_advice_is_true():
    """What is advised together makes it fit, and one setting less does not."""
    together = Workload(
        **{
            **vars(WORK),
            "tokens_at_once": 1024,
            "is_recomputed": True,
            "optimizer": "adamw_8bit",
            "lora_rank": 16,
        }
    )
    assert check(machine(15.5), workload=together) is not None
    with pytest.raises(MemoryShortError):
        check(machine(15.5), workload=Workload(**{**vars(together), "lora_rank": 0}))


@pytest.mark.parametrize(
    ("free", "tokens"), [(100, 4096), (30, 2048), (26, 1024), (24, 512), (22.5, 256), (19.5, 256), (3, 256)]
)
def test_as_many_tokens_are_forwarded_at_once_as_fit_with_room_to_spare(free, tokens):
    def estimate_of(work: Workload):
        return estimate_memory(HALF_BILLION, CPU, work)

    chosen = widest(machine(free), CPU, WORK, estimate_of)
    assert chosen == Workload(**{**vars(WORK), "tokens_at_once": tokens})
    needed = estimate_of(chosen).at(HOST)
    if tokens > 256:
        assert needed <= NEAR * free * GB


def test_more_than_the_machine_has_is_a_mistake_in_the_configuration():
    with pytest.raises(ConfigError, match=r"8\.0 GB is all there is") as caught:
        check(machine(free=6, total=8))
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("total", "free", "shares", "error", "said"),
    [
        (141, 141, (0.4, 0.5), None, ""),
        (24, 24, (0.4, 0.5), ConfigError, r"the trainer's part \(50%\) of cuda:0, and 12\.0 GB is all"),
        (
            80,
            10,
            (0.4, 0.5),
            MemoryShortError,
            r"the trainer's part \(50%\) of cuda:0, and 10\.0 GB are free",
        ),
        (80, 80, (0.02, 0.5), ConfigError, r"the generator's part \(2%\) of cuda:0"),
    ],
)
def test_a_gpu_is_checked_part_by_part(total, free, shares, error, said):
    gpu = Gpu(0, "G", (9, 0), total * GB, free * GB, has_bfloat16=True)
    of, placement = machine(free=100, gpus=(gpu,)), on_gpus("cuda:0", "cuda:0", shares)
    if error is None:
        assert check(of, placement) == ()
    else:
        with pytest.raises(error, match=said):
            check(of, placement)
