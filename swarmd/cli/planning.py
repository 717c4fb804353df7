"""Where a model is to be computed on this machine, and whether its memory suffices: found out before
anything of it is loaded.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from swarmd.config import Config
from swarmd.errors import ConfigError
from swarmd.generation.vllm_choice import find_vllm, why_not, why_not_on
from swarmd.models.fit import check_fit, widest
from swarmd.models.memory import Workload, estimate_memory
from swarmd.models.placement import MOST_TOKENS_AT_ONCE, Placement, Wish, place
from swarmd.models.probe import probe_machine
from swarmd.models.shape import ModelShape
from swarmd.tasks.manifest import Manifest

__all__ = ["plan_for", "workload_of"]

_PROMPT_TOKENS = 256
"""Taken for a prompt, whose length nobody knows before it is rendered; less where the context is short."""


def plan_for(config: Config, manifest: Manifest, model: str, shape: ModelShape | None) -> Placement:
    """Place generator and trainer, with what each is estimated to take.

    `shape` is None for a model whose form is not known; its memory is then not estimated.

    Raises ConfigError (device, shares, weights.channel, a model that this machine can never hold) or
    MemoryShortError.
    """
    wishes = [
        Wish(
            f"{name}.device" if section.device else "model.device",
            section.device or config.model.device,
            section.memory_share,
        )
        for name, section in (("generation", config.generation), ("training", config.training))
    ]
    machine = probe_machine(with_gpus=any(wish.device != "cpu" for wish in wishes))
    placement = place(
        machine, wishes[0], wishes[1], config.model.dtype, 0 if shape is None else shape.parameters
    )
    if config.weights.channel == "cuda_ipc" and not placement.is_shared:
        raise ConfigError(
            "weights.channel is cuda_ipc, but generator and trainer are not on the same GPU "
            f"({placement.generator.device}, {placement.trainer.device}): choose auto"
        )
    tokens = config.training.tokens_at_once or MOST_TOKENS_AT_ONCE
    if shape is None:
        return replace(placement, tokens_at_once=tokens)
    workload = workload_of(config, manifest, shape, placement)
    estimate_of = partial(estimate_memory, shape, placement)
    why_tokens = ""
    if not config.training.tokens_at_once:
        whole, workload = workload, widest(machine, placement, workload, estimate_of)
        if workload != whole:
            tokens = workload.tokens_at_once
            why_tokens = f"; {tokens} tokens at once, as memory allows"
    warnings: tuple[str, ...] = ()
    if config.model.check_memory:
        warnings = check_fit(model, machine, placement, workload, estimate_of)
    estimate = estimate_of(workload)
    trainer = placement.trainer
    return Placement(
        replace(placement.generator, needs_bytes=estimate.of("generator")),
        replace(trainer, needs_bytes=estimate.of("trainer"), why=trainer.why + why_tokens),
        warnings,
        tokens,
    )


def workload_of(config: Config, manifest: Manifest, shape: ModelShape, placement: Placement) -> Workload:
    """What the configuration makes the processes do, as far as it takes memory."""
    group_size = config.rollout.group_size
    new_tokens = min(config.rollout.max_new_tokens or manifest.max_new_tokens, shape.context_tokens)
    prompt_tokens = min(_PROMPT_TOKENS, max(1, shape.context_tokens // 4))
    groups = config.replay.local_groups + config.replay.external_groups
    batch_tokens = groups * (prompt_tokens + group_size * new_tokens)
    return Workload(
        engine=_engine(config, placement.generator.device),
        rows=group_size * config.rollout.batch_questions,
        row_tokens=min(prompt_tokens + new_tokens, shape.context_tokens),
        tokens_at_once=min(config.training.tokens_at_once or MOST_TOKENS_AT_ONCE, batch_tokens),
        kv_cache_bytes=config.generation.kv_cache_bytes,
        optimizer=config.training.optimizer,
        lora_rank=config.training.lora_rank,
        is_recomputed=config.training.gradient_checkpointing,
        has_reference=config.training.kl_weight > 0,
        verifiers=config.rewards.verifiers,
        is_isolated=config.swarm.isolated,
    )


def _engine(config: Config, device: str) -> str:
    if config.generation.engine != "auto":
        return config.generation.engine
    installed = find_vllm()
    if installed is None or why_not(installed) or why_not_on(installed, device.partition(":")[0]):
        return "transformers"
    return "vllm"
