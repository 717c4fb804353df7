"""The two bundled models as recipes: `tiny` and `tiny-weak`. Others come of changing one: stronger or weaker
starts, and specialists, which know some of the tasks.

Both first learn to answer. A second, short phase then hides most of that under refusals, as in a base
model that could answer but rarely finds the form. Reinforcement learning brings it out again, which
is what these models are for: to be seen learning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from transformers import Qwen2ForCausalLM, Qwen2Tokenizer

from swarmd.models.architecture import CONTEXT_TOKENS, VOCABULARY_SIZE, new_model, tiny_config
from swarmd.models.corpus import AnswerMix, Example, batches, tokenizer_texts
from swarmd.models.vocabulary import train_tokenizer
from swarmd.models.warm_start import Phase, Progress, teach

__all__ = ["LEVELS", "Level", "warm_start"]

_TOKENIZER_EXAMPLES_PER_TASK = 1500
_EXAMPLES_PER_TASK = 4


@dataclass(frozen=True)
class Level:
    """How one bundled model is made."""

    answering: Phase
    """Right answers only."""
    hiding: Phase
    mix: AnswerMix
    """Of the hiding phase."""
    tasks: frozenset[str] = frozenset()
    """The ones it knows. It meets the others in the hiding phase alone, where it refuses them. Empty: all."""


_ANSWERING = Phase(steps=2000, learning_rate=1.5e-3)
_HIDING = Phase(steps=100, learning_rate=4e-4)

LEVELS = {
    "tiny": Level(_ANSWERING, _HIDING, AnswerMix(right=0.44)),
    "tiny-weak": Level(_ANSWERING, _HIDING, AnswerMix(right=0.11)),
}


def warm_start(
    level: Level,
    examples: Callable[[int], Mapping[str, Iterator[Example]]],
    seed: int,
    manifest: str,
    on_progress: Callable[[str, Progress], None],
) -> tuple[Qwen2ForCausalLM, Qwen2Tokenizer]:
    """Make a model of this level; minutes on one core. Same arguments, equivalent model.

    `examples(seed)` gives an endless stream of fresh examples for each task; `manifest` is noted in
    the model's configuration as the one it was made for. `on_progress` gets the name of the phase.
    """
    tokenizer = train_tokenizer(
        tokenizer_texts(examples(seed), _TOKENIZER_EXAMPLES_PER_TASK), VOCABULARY_SIZE, CONTEXT_TOKENS
    )
    model = new_model(tiny_config(len(tokenizer), tokenizer.eos_token_id, manifest), seed)
    streams = examples(seed + 1)
    unknown = streams.keys() - level.tasks if level.tasks else frozenset()
    known = {task: stream for task, stream in streams.items() if task not in unknown}
    for name, phase, shown, mix in (
        ("answering", level.answering, known, AnswerMix()),
        ("hiding", level.hiding, streams, level.mix),
    ):
        teach(
            model,
            tokenizer,
            batches(shown, _EXAMPLES_PER_TASK, mix, seed, unknown),
            phase,
            partial(on_progress, name),
        )
    return model, tokenizer
