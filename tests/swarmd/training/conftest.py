"""Small random Qwen2 models with the bundled tokenizer, and groups to train them on."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

import swarmd.models
from swarmd.models.tokenization import Tokenizer, encode_prompt, load_tokenizer
from swarmd.training.policy import Policy
from swarmd.types import Completion, FinishReason, Prompt, RolloutGroup, TaskReference

TINY = Path(swarmd.models.__file__).parent / "tiny"


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return load_tokenizer(TINY)


def random_model(
    tokenizer: Tokenizer, *, tied: bool = True, seed: int = 0, context: int = 96
) -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        initializer_range=0.2,
        tie_word_embeddings=tied,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config)


@pytest.fixture
def make_policy(tokenizer) -> Callable[..., Policy]:
    """Makes policies; options are tied, seed, context, temperature."""

    def make(temperature: float = 1.0, **options) -> Policy:
        return Policy(random_model(tokenizer, **options), temperature)

    return make


@pytest.fixture
def model_folder(tokenizer, tmp_path) -> Path:
    """A model folder as `swarmd start --model PATH` takes it."""
    folder = tmp_path / "model"
    random_model(tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


QUESTION = Prompt("plain", "<question>Calculate 3 + 4.<answer>")


def sampled_logprobs(policy: Policy, tokenizer: Tokenizer, prompt: Prompt, token_ids: list[int]) -> tuple:
    """What a generator with the same weights reports for these tokens, by the model's plain forward."""
    prompt_ids = encode_prompt(tokenizer, prompt)
    with torch.no_grad():
        logits_TV = policy.model(torch.tensor([prompt_ids + token_ids])).logits[0] / policy.temperature
    logprobs_TV = torch.log_softmax(logits_TV[len(prompt_ids) - 1 : -1], dim=-1)
    return tuple(logprobs_TV.gather(-1, torch.tensor(token_ids).unsqueeze(-1)).squeeze(-1).tolist())


@pytest.fixture
def make_group(tokenizer) -> Callable[..., RolloutGroup]:
    """Makes groups from completions and their rewards: `make_group({"7": 1, "8": 0}, policy)`.

    With a policy the group is the node's own, with tokens and log-probabilities; without, a peer's.
    """

    def make(
        answers,
        policy: Policy | None = None,
        *,
        finish_reason: FinishReason = FinishReason.STOP,
        prompt: Prompt = QUESTION,
        policy_version: int = 0,
        logprob_shift: float = 0.0,
    ) -> RolloutGroup:
        pairs = list(answers.items() if isinstance(answers, dict) else answers)
        completions = []
        for text, _ in pairs:
            token_ids = logprobs = None
            if policy is not None:
                token_ids = tokenizer.encode(text, add_special_tokens=False)
                token_ids += [tokenizer.eos_token_id] * (finish_reason is FinishReason.STOP)
                logprobs = sampled_logprobs(policy, tokenizer, prompt, token_ids)
                logprobs = tuple(value + logprob_shift for value in logprobs)
                token_ids = tuple(token_ids)
            completions.append(Completion(text, finish_reason, token_ids, logprobs))
        return RolloutGroup(
            group_id="00" * 16,
            author="self" if policy is not None else "peer",
            is_local=policy is not None,
            task=TaskReference("basic_arithmetic", "digest", 1, 2),
            prompt=prompt,
            completions_G=tuple(completions),
            rewards_G=tuple(float(reward) for _, reward in pairs),
            policy_version=policy_version,
            created_at=0.0,
            received_at=0.0,
            size_bytes=100,
        )

    return make
