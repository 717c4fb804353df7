"""Small random models with the bundled tokenizer. Many tokens end a completion, so that rows finish
at different times.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

import swarmd.models
from swarmd.generation.transformers import TransformersEngine
from swarmd.models.tokenization import Tokenizer, load_tokenizer
from swarmd.weights.shared_memory import WeightReader

TINY = Path(swarmd.models.__file__).parent / "tiny"
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "initializer_range": 0.3,
}


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return load_tokenizer(TINY)


@pytest.fixture
def make_model(tokenizer) -> Callable[..., PreTrainedModel]:
    """Makes a model of `kind` qwen2 or sliding (window); every `ends`-th token ends a completion."""

    def make(*, kind: str = "qwen2", tied: bool = True, seed: int = 0, ends: int = 8) -> PreTrainedModel:
        options = SHAPE | {
            "vocab_size": len(tokenizer),
            "tie_word_embeddings": tied,
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
        }
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if kind == "sliding":
                model = MistralForCausalLM(MistralConfig(**options, sliding_window=5))
            else:
                model = Qwen2ForCausalLM(Qwen2Config(**options))
        model.generation_config.eos_token_id = list(range(0, len(tokenizer), ends)) if ends else None
        return model.eval()

    return make


@pytest.fixture
def make_engine(tokenizer, make_model) -> Callable[..., TransformersEngine]:
    """Makes an engine that reads real shared memory, of `model` or of what `make_model` makes."""

    def make(
        model: PreTrainedModel | None = None, seed: int = 0, batch_bytes: int = 1 << 30, **options
    ) -> TransformersEngine:
        chosen = make_model(**options) if model is None else model
        return TransformersEngine(chosen, tokenizer, seed, batch_bytes, WeightReader.attach)

    return make
