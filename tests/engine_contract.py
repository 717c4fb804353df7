"""What every engine promises, as tests. The tests of an engine import all of it and bring a fixture `served`:
that engine with the model that `make_model` makes of seed 0, once tied and once untied.
"""

import math
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

import swarmd.models
from swarmd.errors import GenerationError, WeightChannelError
from swarmd.generation.engines import open_engine
from swarmd.generation.generator import Engine, is_finite
from swarmd.generation.messages import GeneratorSettings, LoadWeightsRequest, SampleReply, SampleRequest
from swarmd.models.canary import canary_tokens
from swarmd.models.tokenization import Tokenizer, encode_prompt, load_tokenizer
from swarmd.types import FinishReason, Prompt, WeightHandle
from swarmd.weights.segment import Segment
from swarmd.weights.shared_memory import KIND, WeightReader, WeightWriter

TINY = Path(swarmd.models.__file__).parent / "tiny"
ENDS_EVERY = 64
"""Every so many-th token ends a completion, so that they have many lengths."""
PROMPTS = tuple(
    Prompt(style="plain", text=f"<question>{question}<answer>")
    for question in ("1 + 1", "Is 1900 a leap year? Answer with yes or no.", "a b c d e f g h 1 2 3 4 5 " * 4)
)
TOLERANCE = 1e-4


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


def open_served(engine: str, kind: str, folder: Path, make_model: MakeModel, tokenizer: Tokenizer) -> Served:
    """Write the model of `kind`, tied or untied, and open it as the generator process does."""
    make_model(tied=kind == "tied", seed=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    settings = GeneratorSettings(
        model_path=str(folder), engine=engine, device="cpu", dtype="float32", threads=1, seed=0
    )
    return Served(open_engine(settings, WeightReader.attach), folder, kind == "tied")


@pytest.fixture
def channel_name() -> Iterator[str]:
    name = f"swarmd-contract-{os.getpid()}"
    yield name
    Segment.remove(name)


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


def request(**changes) -> SampleRequest:
    base = SampleRequest(prompts=PROMPTS, group_size=6, max_new_tokens=24, temperature=1.0, seed=0)
    return msgspec.structs.replace(base, **changes)


def completions(reply):
    return [completion for group in reply.groups for completion in group.completions_G]


def tokens(reply):
    return [completion.token_ids_T for completion in completions(reply)]


@pytest.fixture
def channel(served, make_model, channel_name):
    """Publishes weights of a seed as a version and has the engine load them; returns the model."""
    first = make_model(tied=served.tied, seed=0)
    with WeightWriter.create(channel_name, first.state_dict()) as writer:

        def publish(version: int, seed: int):
            model = make_model(tied=served.tied, seed=seed)
            writer.publish(version, model.state_dict())
            return model

        def load(version: int, seed: int):
            model = publish(version, seed)
            reply = served.engine.load_weights(LoadWeightsRequest(writer.handle, version))
            assert reply.version == version
            return model

        load.publish = publish
        load.writer = writer
        load.handle = writer.handle
        yield load


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_transformers(served, channel, difference, temperature):
    model = channel(1, seed=0)
    reply = served.engine.sample(request(temperature=temperature))
    assert [len(group.completions_G) for group in reply.groups] == [6, 6, 6]
    assert {group.policy_version for group in reply.groups} == {1}
    assert reply.generated_tokens == sum(map(len, tokens(reply)))
    assert difference(reply, PROMPTS, {1: model}, temperature) < TOLERANCE


def test_no_prompts_give_no_groups(served):
    assert served.engine.sample(request(prompts=())).groups == ()


def test_temperature_zero_takes_the_most_likely_token_and_tells_its_logprob_at_one(
    served, channel, difference
):
    model = channel(1, seed=0)
    reply = served.engine.sample(request(temperature=0.0, group_size=2))
    assert all(group.completions_G[0] == group.completions_G[1] for group in reply.groups)
    assert difference(reply, PROMPTS, {1: model}) < TOLERANCE


def test_finish_reasons_and_end_tokens_are_told_apart(served, tokenizer):
    reply = served.engine.sample(request(group_size=16))
    reasons = set()
    for completion in completions(reply):
        reasons.add(completion.finish_reason)
        stopped = completion.finish_reason is FinishReason.STOP
        text_ids = completion.token_ids_T[:-1] if stopped else completion.token_ids_T
        assert completion.text == tokenizer.decode(text_ids, skip_special_tokens=True)
        assert (completion.token_ids_T[-1] % 64 == 0) == stopped
        assert stopped or len(completion.token_ids_T) == 24
        assert len(completion.logprobs_T) == len(completion.token_ids_T)
    assert reasons == {FinishReason.STOP, FinishReason.LENGTH}


def test_same_seed_gives_the_same_completions_and_another_seed_does_not(served):
    first = tokens(served.engine.sample(request(seed=1)))
    assert tokens(served.engine.sample(request(seed=1))) == first
    assert tokens(served.engine.sample(request(seed=2))) != first
    assert len(set(first)) > len(first) // 2


def test_prompt_near_the_end_of_the_context_gets_shorter_completions(served):
    long = Prompt(style="plain", text="1" * 510)
    reply = served.engine.sample(request(prompts=(long, PROMPTS[0])))
    assert max(len(completion.token_ids_T) for completion in reply.groups[0].completions_G) == 2
    with pytest.raises(GenerationError, match=r"512 tokens.*context holds 512"):
        served.engine.sample(request(prompts=(Prompt(style="plain", text="1" * 512),)))


@pytest.mark.parametrize("change", [{"group_size": 0}, {"max_new_tokens": 0}, {"temperature": -1.0}])
def test_request_that_makes_no_sense_is_refused(served, change):
    with pytest.raises(GenerationError, match="must be at least"):
        served.engine.sample(request(**change))


def test_engine_updated_from_a_to_b_equals_a_fresh_b(served, channel, difference):
    before = served.engine.sample(request(seed=7))
    fresh_b = channel(2, seed=2)
    after = served.engine.sample(request(seed=7))
    assert {group.policy_version for group in after.groups} == {2}
    assert tokens(after) != tokens(before)
    assert difference(after, PROMPTS, {2: fresh_b}) < TOLERANCE
    fresh_c = channel(3, seed=3)
    assert difference(served.engine.sample(request(seed=7)), PROMPTS, {3: fresh_c}) < TOLERANCE


def test_weights_that_are_overwritten_while_they_are_loaded_are_never_sampled_from(
    served, channel, make_model, difference
):
    models = {seed: make_model(tied=served.tied, seed=seed) for seed in (2, 3)}
    states = {seed: model.state_dict() for seed, model in models.items()}
    done = threading.Event()

    def train() -> None:
        version = 4
        while not done.is_set():
            channel.writer.publish(version, states[2 + version % 2])
            version += 1

    channel(4, seed=2)
    trainer = threading.Thread(target=train)
    trainer.start()
    try:
        for _ in range(4):
            version = served.engine.load_weights(LoadWeightsRequest(channel.handle, 4)).version
    finally:
        done.set()
        trainer.join()
    # Canary and not sampling: that would go on to the newest version.
    model = models[2 + version % 2]
    assert served.engine.policy_version == version
    canary = served.engine.canary()
    ids_1S = torch.tensor([canary_tokens(load_tokenizer(TINY))])
    with torch.no_grad():
        all_SV = torch.log_softmax(model(ids_1S).logits[0, :-1], dim=-1)
    expected_S = all_SV.gather(-1, ids_1S[0, 1:].unsqueeze(-1)).squeeze(-1)
    assert (expected_S - torch.tensor(canary.logprobs_T)).abs().max() < TOLERANCE


def test_restarted_trainer_that_counts_from_an_older_version_is_followed(served, channel, difference):
    channel(9, seed=2)
    older = channel(5, seed=4)
    assert difference(served.engine.sample(request()), PROMPTS, {5: older}) < TOLERANCE


def test_weights_of_another_model_are_refused_and_the_old_ones_stay(
    served, channel, channel_name, make_model, difference
):
    model = channel(4, seed=5)
    of_another_kind = make_model(tied=not served.tied, seed=1).state_dict()
    wrong = [
        ({"x": torch.zeros(1)}, "tensor x"),
        ({**model.state_dict(), "model.norm.weight": torch.zeros(3)}, r"model\.norm\.weight \[3\]"),
        ({"model.norm.weight": torch.zeros(128)}, "is missing"),
    ]
    if served.tied:
        wrong.append((of_another_kind, "not tied"))
    for number, (tensors, reason) in enumerate(wrong):
        with WeightWriter.create(f"{channel_name}-{number}", tensors) as writer:
            writer.publish(9, tensors)
            with pytest.raises(GenerationError, match=reason):
                served.engine.load_weights(LoadWeightsRequest(writer.handle, 9))
    with pytest.raises(WeightChannelError, match="no shared memory"):
        served.engine.load_weights(LoadWeightsRequest(WeightHandle(KIND, "swarmd-none"), 1))
    reply = served.engine.sample(request())
    assert {group.policy_version for group in reply.groups} == {4}
    assert difference(reply, PROMPTS, {4: model}) < TOLERANCE


def test_log_probabilities_of_diverged_weights_are_told_as_they_are_and_leave_no_trace(
    served, channel, channel_name, make_model, difference
):
    diverged = make_model(tied=served.tied, seed=0)
    with torch.no_grad():
        diverged.lm_head.weight[3, 3] = float("nan")
    tensors = diverged.state_dict()
    with WeightWriter.create(f"{channel_name}-nan", tensors) as writer:
        writer.publish(6, tensors)
        served.engine.load_weights(LoadWeightsRequest(writer.handle, 6))
        for temperature in (0.0, 1.0):
            reply = served.engine.sample(request(temperature=temperature))
            assert not any(map(is_finite, reply.groups))
        assert not all(map(math.isfinite, served.engine.canary().logprobs_T))
    model = channel(7, seed=0)
    reply = served.engine.sample(request())
    assert all(map(is_finite, reply.groups))
    assert difference(reply, PROMPTS, {7: model}) < TOLERANCE
