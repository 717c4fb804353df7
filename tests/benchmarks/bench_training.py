"""How much faster a training step is than the same update written plainly.

The plain way is one padded row for each completion, prompt and all: forward, backward, clipping and
Adam in plain torch, with logits for completion tokens only. TRL's own loss on the same rows is a third,
where `trl` is installed (`pip install 'swarmd[bench]'`). All take the same groups, sampled by an older
policy, on one CPU thread; they take turns on one model, each with an optimizer of its own, and the medians
of their processor seconds are compared, which other programs disturb less. The trainer's time includes
tokenization of prompts and its metrics. Before timing, gradients of the first two are compared.
Run: python tests/benchmarks/bench_training.py [--shape tiny|small|qwen2.5-0.5b] [--groups N] ...
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

import swarmd
from swarmd.models.tokenization import Tokenizer, encode_prompt, load_tokenizer
from swarmd.training.advantages import group_advantages
from swarmd.training.messages import TrainingOptions
from swarmd.training.policy import Policy
from swarmd.training.trainer import Trainer
from swarmd.types import Completion, FinishReason, Prompt, RolloutGroup, TaskReference

TINY = Path(swarmd.__file__).parent / "models" / "tiny"
SHAPES = {
    "small": (8192, 384, 1024, 6, 6, 2),
    "qwen2.5-0.5b": (151_936, 896, 4864, 24, 14, 2),
}
"""Vocabulary, hidden, intermediate, layers, heads, key-value heads."""
Rows = dict[str, Tensor]


def main() -> None:
    """Print seconds of a step and ratios, for completions of one length and of many."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=("tiny", *SHAPES), default="tiny")
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64, help="of a prompt, and of the longest completion")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for lengths in ("equal", "varied"):
        _compare(arguments, lengths)


def _compare(arguments: argparse.Namespace, lengths: str) -> None:
    tokenizer = load_tokenizer(TINY)
    groups = _make_groups(arguments, lengths, tokenizer)
    rows = _make_rows(groups, tokenizer)
    dtype = getattr(torch, arguments.dtype)
    options = TrainingOptions(gradient_checkpointing=arguments.gradient_checkpointing)
    model = _make_model(arguments.shape)
    policy = Policy(model, 1.0, dtype)
    if options.gradient_checkpointing:
        policy.recompute()
    trainer = Trainer(policy, tokenizer, options, max_new_tokens=arguments.tokens, seed=0)
    plain = _Plain(model, options, dtype)
    _assert_same_gradients(trainer, groups, plain, rows)

    steps: dict[str, Callable[[], object]] = {
        "swarmd": lambda: trainer.step(groups),
        "plain": lambda: plain.step(rows),
    }
    with contextlib.ExitStack() as stack:
        if importlib.util.find_spec("trl") is not None and dtype == torch.float32:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            trl = _trl_loss(model, tokenizer, arguments, folder)
            steps["trl"] = lambda: trl.step(rows)
        seconds: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(arguments.rounds + 1):
            for name, step in steps.items():
                started = time.process_time()
                step()
                seconds[name].append(time.process_time() - started)
    prompts = [len(encode_prompt(tokenizer, group.prompt)) for group in groups]
    answers = [len(c.token_ids_T or ()) for group in groups for c in group.completions_G]
    print(
        f"{arguments.shape}, {len(groups)} groups x {arguments.group_size}, prompts of {prompts[0]} tokens, "
        f"completions of {min(answers)} to {max(answers)}"
    )
    # The first of each warms up.
    medians = {name: statistics.median(values[1:]) for name, values in seconds.items()}
    for name, median in medians.items():
        spread = f"{min(seconds[name][1:]):.3f} to {max(seconds[name][1:]):.3f}"
        ratio = f"  {median / medians['swarmd']:.2f} x swarmd's" if name != "swarmd" else ""
        print(f"  {name:8s}{median:8.3f} s ({spread})  {sum(answers) / median:.0f} tokens/s{ratio}")


def _make_model(shape: str) -> Any:
    if shape == "tiny":
        return AutoModelForCausalLM.from_pretrained(str(TINY), dtype=torch.float32, local_files_only=True)
    vocabulary, hidden, intermediate, layers, heads, kv_heads = SHAPES[shape]
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=vocabulary,
            hidden_size=hidden,
            intermediate_size=intermediate,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
        )
    )


def _make_groups(
    arguments: argparse.Namespace, lengths: str, tokenizer: Tokenizer
) -> tuple[RolloutGroup, ...]:
    """Own groups of random answers; their log-probabilities are those of a somewhat different policy."""
    generator = random.Random(0)
    least = arguments.tokens if lengths == "equal" else arguments.tokens // 8
    groups = []
    for number in range(arguments.groups):
        digits = "".join(f" {generator.randrange(10)}" for _ in range(arguments.tokens - 2))
        completions = []
        for _ in range(arguments.group_size):
            ids = [
                generator.randrange(len(tokenizer)) for _ in range(generator.randint(least, arguments.tokens))
            ]
            logprobs = tuple(-generator.uniform(4.0, 8.0) for _ in ids)
            completions.append(Completion("", FinishReason.LENGTH, tuple(ids), logprobs))
        groups.append(
            RolloutGroup(
                group_id=f"{number:032x}",
                author="self",
                is_local=True,
                task=TaskReference("basic_arithmetic", "digest", 1, number),
                prompt=Prompt("plain", f"<question>{digits}<answer>"),
                completions_G=tuple(completions),
                rewards_G=tuple(float(place % 2) for place in range(arguments.group_size)),
                policy_version=0,
                created_at=0.0,
                received_at=0.0,
                size_bytes=0,
            )
        )
    return tuple(groups)


def _make_rows(groups: tuple[RolloutGroup, ...], tokenizer: Tokenizer) -> Rows:
    """One padded row for each completion: prompts on the left, completions on the right."""
    prompts, completions, logprobs, advantages = [], [], [], []
    for group in groups:
        for completion in group.completions_G:
            prompts.append(torch.tensor(encode_prompt(tokenizer, group.prompt)))
            completions.append(torch.tensor(completion.token_ids_T))
            logprobs.append(torch.tensor(completion.logprobs_T))
        advantages += group_advantages(group.rewards_G, "std")
    pad = torch.nn.utils.rnn.pad_sequence
    return {
        "prompt_ids": pad(prompts, batch_first=True, padding_side="left"),
        "prompt_mask": pad([torch.ones_like(ids) for ids in prompts], batch_first=True, padding_side="left"),
        "completion_ids": pad(completions, batch_first=True),
        "completion_mask": pad([torch.ones_like(ids) for ids in completions], batch_first=True),
        "old_per_token_logps": pad(logprobs, batch_first=True),
        "advantages": torch.tensor(advantages),
    }


class _Plain:
    """The update as one would write it down: all rows at once, Adam, nothing else."""

    def __init__(self, model: Any, options: TrainingOptions, dtype: torch.dtype) -> None:
        self.model = model.train()
        self._dtype = dtype
        betas = (options.adam_beta1, options.adam_beta2)
        self._optimizer = torch.optim.AdamW(
            model.parameters(), lr=options.learning_rate, betas=betas, weight_decay=0.0
        )

    def loss(self, rows: Rows) -> Tensor:
        ids = torch.cat([rows["prompt_ids"], rows["completion_ids"]], dim=1)
        mask = torch.cat([rows["prompt_mask"], rows["completion_mask"]], dim=1)
        tokens = rows["completion_ids"].shape[1]
        with torch.autocast("cpu", self._dtype, enabled=self._dtype != torch.float32):
            output = self.model(
                input_ids=ids, attention_mask=mask, logits_to_keep=tokens + 1, use_cache=False
            )
        logprobs = torch.log_softmax(output.logits[:, :-1].float(), dim=-1)
        chosen = logprobs.gather(-1, rows["completion_ids"].unsqueeze(-1)).squeeze(-1)
        ratio = torch.exp(chosen - rows["old_per_token_logps"])
        advantages = rows["advantages"].unsqueeze(1)
        losses = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages)
        return (losses * rows["completion_mask"]).sum() / rows["completion_mask"].sum()

    def step(self, rows: Rows) -> None:
        """Forward, backward, clip, update."""
        self._optimizer.zero_grad()
        self.loss(rows).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()


class _Trl(_Plain):
    """The same with TRL's loss in the middle."""

    def __init__(self, trainer: Any, options: TrainingOptions) -> None:
        super().__init__(trainer.model, options, torch.float32)
        self._trainer = trainer

    def loss(self, rows: Rows) -> Tensor:
        inputs = {**rows, "num_items_in_batch": rows["completion_mask"].sum()}
        loss: Tensor = self._trainer.compute_loss(self.model, inputs)
        return loss


def _trl_loss(model: Any, tokenizer: Tokenizer, arguments: argparse.Namespace, folder: str) -> _Trl:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=arguments.groups * arguments.group_size,
            num_generations=arguments.group_size,
            max_completion_length=arguments.tokens,
            beta=0.0,
            epsilon=0.2,
            epsilon_high=0.28,
            loss_type="dapo",
            gradient_checkpointing=arguments.gradient_checkpointing,
            use_cpu=True,
            bf16=False,
            report_to=[],
        ),
        train_dataset=Dataset.from_dict({"prompt": ["1"] * 8}),
        processing_class=tokenizer,
    )
    # Set by its training loop, which is not run here.
    trainer.current_gradient_accumulation_steps = 1
    return _Trl(trainer, TrainingOptions())


def _assert_same_gradients(
    trainer: Trainer, groups: tuple[RolloutGroup, ...], plain: _Plain, rows: Rows
) -> None:
    """Both are the same update, or comparing them would say nothing."""
    plain.loss(rows).backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(plain.model.parameters(), 1.0)
    expected = {name: parameter.grad.clone() for name, parameter in plain.model.named_parameters()}
    plain.model.zero_grad()
    tolerance = 1e-4 if trainer.policy.compute_dtype == torch.float32 else 5e-2

    def compare(*_: Any) -> None:
        for name, parameter in trainer.policy.parameters.items():
            gap = float((parameter.grad - expected[name]).norm() / expected[name].norm())
            assert gap < tolerance, f"{name}: gradients differ by {gap:.2g}"

    hook = trainer._optimizer.register_step_pre_hook(compare)
    trainer.step(groups)
    hook.remove()


if __name__ == "__main__":
    main()
