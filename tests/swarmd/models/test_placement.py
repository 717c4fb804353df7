"""A table of machines, none of which has to be here."""

import pytest

from swarmd.errors import ConfigError
from swarmd.models.machine import Gpu, Machine
from swarmd.models.placement import Place, Placement, Wish, place

GB = 10**9
SMALL, LARGE = 1_000_000, 500_000_000


def gpu(index: int = 0, *, total: float = 24, free: float | None = None, capability=(8, 6), fault="") -> Gpu:
    free_bytes = int((total if free is None else free) * GB)
    return Gpu(
        index=index,
        name=f"G{index}",
        capability=capability,
        total_bytes=int(total * GB),
        free_bytes=0 if fault else free_bytes,
        has_bfloat16=not fault and capability >= (8, 0),
        fault=fault,
    )


def machine(*gpus: Gpu, bfloat16: bool = False, gpu_fault: str = "") -> Machine:
    return Machine(32 * GB, 30 * GB, gpus, gpu_fault, bfloat16)


def placed(
    of: Machine, generator="auto", trainer="auto", dtype="auto", parameters=LARGE, shares=(0.0, 0.0)
) -> Placement:
    return place(
        of,
        Wish("generation.device", generator, shares[0]),
        Wish("training.device", trainer, shares[1]),
        dtype,
        parameters,
    )


def summary(one: Place) -> tuple[str, str, float]:
    return one.device, one.dtype, one.memory_share


TURING, VOLTA, PASCAL = (7, 5), (7, 0), (6, 1)


@pytest.mark.parametrize(
    ("of", "generator", "trainer"),
    [
        # No GPU: the CPU, in what it computes well at this size.
        (machine(), ("cpu", "float32", 1), ("cpu", "float32", 1)),
        (machine(bfloat16=True), ("cpu", "bfloat16", 1), ("cpu", "float32", 1)),
        (machine(gpu(fault="no kernel image")), ("cpu", "float32", 1), ("cpu", "float32", 1)),
        (machine(gpu_fault="driver too old"), ("cpu", "float32", 1), ("cpu", "float32", 1)),
        # One: both on it, with a share each of what is free.
        (machine(gpu()), ("cuda:0", "bfloat16", 0.4), ("cuda:0", "bfloat16", 0.5)),
        (machine(gpu(free=12)), ("cuda:0", "bfloat16", 0.2), ("cuda:0", "bfloat16", 0.25)),
        (machine(gpu(capability=TURING)), ("cuda:0", "float16", 0.4), ("cuda:0", "float32", 0.5)),
        (machine(gpu(capability=VOLTA)), ("cuda:0", "float16", 0.4), ("cuda:0", "float32", 0.5)),
        (machine(gpu(capability=PASCAL)), ("cuda:0", "float32", 0.4), ("cuda:0", "float32", 0.5)),
        # Two: one each, and the trainer, which needs more, has the one with more room.
        (machine(gpu(0), gpu(1)), ("cuda:1", "bfloat16", 0.9), ("cuda:0", "bfloat16", 0.9)),
        (
            machine(gpu(0, free=10), gpu(1, total=80)),
            ("cuda:0", "bfloat16", 0.375),
            ("cuda:1", "bfloat16", 0.9),
        ),
        (
            machine(gpu(0), gpu(1, capability=TURING)),
            ("cuda:1", "float16", 0.9),
            ("cuda:0", "bfloat16", 0.9),
        ),
        # A second one that is too small or broken is left alone.
        (machine(gpu(0), gpu(1, total=2)), ("cuda:0", "bfloat16", 0.4), ("cuda:0", "bfloat16", 0.5)),
        (machine(gpu(0), gpu(1, fault="dead")), ("cuda:0", "bfloat16", 0.4), ("cuda:0", "bfloat16", 0.5)),
        (machine(gpu(0, fault="dead"), gpu(1)), ("cuda:1", "bfloat16", 0.4), ("cuda:1", "bfloat16", 0.5)),
        # Four: the two with most free memory.
        (
            machine(gpu(0, free=3), gpu(1, free=20), gpu(2, free=1), gpu(3)),
            ("cuda:1", "bfloat16", 0.75),
            ("cuda:3", "bfloat16", 0.9),
        ),
    ],
)
def test_auto_takes_what_the_machine_has(of, generator, trainer):
    chosen = placed(of)
    assert summary(chosen.generator) == generator
    assert summary(chosen.trainer) == trainer
    assert chosen.is_shared == (generator[0] == trainer[0] != "cpu")


@pytest.mark.parametrize(
    ("wishes", "devices"),
    [
        (("cpu", "cpu"), ("cpu", "cpu")),
        (("cpu", "auto"), ("cpu", "cuda:0")),
        (("auto", "cpu"), ("cuda:0", "cpu")),
        (("cuda:0", "auto"), ("cuda:0", "cuda:1")),
        (("auto", "cuda:1"), ("cuda:0", "cuda:1")),
        (("cuda:1", "cuda:1"), ("cuda:1", "cuda:1")),
        (("cuda", "cuda"), ("cuda:1", "cuda:0")),
        (("cuda", "cpu"), ("cuda:0", "cpu")),
    ],
)
def test_named_devices_are_used_and_open_choices_go_elsewhere(wishes, devices):
    chosen = placed(machine(gpu(0), gpu(1)), *wishes)
    assert (chosen.generator.device, chosen.trainer.device) == devices


def test_with_one_gpu_named_for_one_the_other_shares_it():
    chosen = placed(machine(gpu()), "cuda:0", "auto")
    assert chosen.is_shared
    assert chosen.trainer.why.startswith("G0, the only GPU that works")


@pytest.mark.parametrize(
    ("of", "wishes", "said"),
    [
        (
            machine(gpu(0), gpu(1)),
            ("cuda:2", "auto"),
            "generation.device is cuda:2, but there is cuda:0, cuda:1",
        ),
        (machine(), ("auto", "cuda"), "training.device is cuda, but no GPU is here"),
        (machine(), ("auto", "cuda:0"), "training.device is cuda:0, but no GPU is here"),
        (machine(gpu_fault="driver too old"), ("cuda", "cpu"), r"cannot be used \(driver too old\)"),
        (machine(gpu(fault="no kernel")), ("cuda:0", "cpu"), r"does not work \(no kernel\); use auto or cpu"),
        (machine(gpu(fault="no kernel")), ("cuda", "cpu"), r"does not work \(no kernel\)"),
    ],
)
def test_a_named_device_that_cannot_be_used_is_refused_naming_the_key(of, wishes, said):
    with pytest.raises(ConfigError, match=said):
        placed(of, *wishes)


@pytest.mark.parametrize(
    ("of", "reason"),
    [
        (machine(), "no GPU is here; the processor has no bfloat16, so float32"),
        (machine(gpu(fault="no kernel image")), "the GPU does not work (no kernel image)"),
        (machine(gpu_fault="driver too old"), "the GPUs cannot be used (driver too old)"),
        (machine(gpu()), "G0, one GPU for both; the GPU computes in bfloat16"),
        (machine(gpu(), gpu(1, total=2)), "one GPU for both, since cuda:1 has too little free memory"),
        (machine(gpu(capability=TURING)), "the GPU has no bfloat16, so float16"),
    ],
)
def test_every_choice_has_its_reason(of, reason):
    assert reason in placed(of).generator.why


@pytest.mark.parametrize(
    ("of", "wanted", "generator", "trainer"),
    [
        (machine(bfloat16=True), "float32", "float32", "float32"),
        (machine(), "bfloat16", "bfloat16", "bfloat16"),
        (machine(), "float16", "float16", "float32"),
        (machine(gpu()), "float32", "float32", "float32"),
        (machine(gpu()), "float16", "float16", "float32"),
        (machine(gpu(capability=TURING)), "bfloat16", "float32", "float32"),
    ],
)
def test_a_named_format_is_used_where_it_can_be(of, wanted, generator, trainer):
    chosen = placed(of, dtype=wanted)
    assert (chosen.generator.dtype, chosen.trainer.dtype) == (generator, trainer)


def test_small_models_compute_in_float32_on_a_cpu():
    assert placed(machine(bfloat16=True), parameters=SMALL).generator.dtype == "float32"


def test_shares_that_are_given_are_used_and_must_fit_on_one_gpu():
    chosen = placed(machine(gpu()), shares=(0.3, 0.6))
    assert (chosen.generator.memory_share, chosen.trainer.memory_share) == (0.3, 0.6)
    with pytest.raises(
        ConfigError, match=r"generation.memory_share \(0.7\) and training.memory_share \(0.5\)"
    ):
        placed(machine(gpu()), shares=(0.7, 0.0))
    assert placed(machine(gpu(0), gpu(1)), shares=(0.95, 0.0)).generator.memory_share == 0.95
