import uuid

import msgspec
import pytest
import torch

from swarmd.errors import GenerationError
from swarmd.generation import transformers as engine_module
from swarmd.generation.messages import LoadWeightsRequest, SampleRequest
from swarmd.models.canary import canary_tokens
from swarmd.models.tokenization import encode_prompt, fingerprint
from swarmd.types import FinishReason, Prompt
from swarmd.weights.segment import Segment
from swarmd.weights.shared_memory import WeightWriter

PROMPTS = tuple(
    Prompt(style="plain", text=f"<question>{question}<answer>")
    for question in ("1 + 1", "Is 1900 a leap year? Answer with yes or no.", "", "a b c d e f g h 1 2 3 4 5")
)


def request(**changes) -> SampleRequest:
    base = SampleRequest(prompts=PROMPTS, group_size=4, max_new_tokens=12, temperature=1.0, seed=0)
    return msgspec.structs.replace(base, **changes)


def completions(reply):
    return [completion for group in reply.groups for completion in group.completions_G]


def tokens(reply):
    return [completion.token_ids_T for completion in completions(reply)]


def logprobs_of(model, tokenizer, prompt, token_ids, temperature):
    prompt_ids = encode_prompt(tokenizer, prompt)
    with torch.no_grad():
        logits_TV = model(input_ids=torch.tensor([[*prompt_ids, *token_ids]])).logits[0]
    logprobs_TV = torch.log_softmax(logits_TV[len(prompt_ids) - 1 : -1] / temperature, dim=-1)
    return logprobs_TV.gather(-1, torch.tensor(token_ids).unsqueeze(-1)).squeeze(-1)


def assert_logprobs_are_those_of(model, tokenizer, reply, temperature=1.0):
    for prompt, group in zip(PROMPTS, reply.groups, strict=True):
        for completion in group.completions_G:
            expected_T = logprobs_of(model, tokenizer, prompt, completion.token_ids_T, temperature)
            assert torch.allclose(torch.tensor(completion.logprobs_T), expected_T, atol=1e-5, rtol=0)


@pytest.fixture
def channel_name():
    name = f"swarmd-test-{uuid.uuid4().hex[:8]}"
    yield name
    Segment.remove(name)


def test_reply_has_one_whole_group_per_prompt_in_their_order(make_engine, make_model, tokenizer):
    reply = make_engine().sample(request(temperature=0.7))
    assert [len(group.completions_G) for group in reply.groups] == [4, 4, 4, 4]
    assert {group.policy_version for group in reply.groups} == {0}
    assert reply.generated_tokens == sum(map(len, tokens(reply)))
    assert_logprobs_are_those_of(make_model(), tokenizer, reply, temperature=0.7)


def test_the_canary_is_what_the_model_finds_of_its_text(make_engine, make_model, tokenizer, channel_name):
    engine, other = make_engine(), make_model(seed=5)
    with WeightWriter.create(channel_name, other.state_dict()) as writer:
        for version, model in ((0, make_model()), (7, other)):
            if version:
                writer.publish(version, other.state_dict())
                engine.load_weights(LoadWeightsRequest(writer.handle, version))
            first, *rest = canary_tokens(tokenizer)
            with torch.no_grad():
                logprobs_TV = torch.log_softmax(
                    model(input_ids=torch.tensor([[first, *rest]])).logits[0], dim=-1
                )
            expected_T = [float(logprobs_TV[place, token]) for place, token in enumerate(rest)]
            found = engine.canary()
            assert (found.version, found.dtype) == (version, "float32")
            assert found.logprobs_T == pytest.approx(expected_T, abs=1e-5)


def test_same_seed_gives_the_same_completions_and_another_seed_does_not(make_engine):
    engine = make_engine()
    first = tokens(engine.sample(request(seed=1)))
    assert tokens(engine.sample(request(seed=1))) == first
    assert tokens(make_engine().sample(request(seed=1))) == first
    assert tokens(engine.sample(request(seed=2))) != first
    assert tokens(make_engine(seed=5).sample(request(seed=1))) != first


def test_completions_of_a_group_and_of_equal_prompts_differ(make_engine):
    sampled = tokens(make_engine(ends=0).sample(request(prompts=(PROMPTS[0], PROMPTS[0]), group_size=6)))
    assert len(set(sampled)) == 12


def test_batches_of_any_size_give_the_same_completions(make_engine):
    expected = tokens(make_engine().sample(request()))
    for batch_bytes in (0, 200_000, 700_000):
        assert tokens(make_engine(batch_bytes=batch_bytes).sample(request())) == expected


def test_out_of_memory_makes_batches_smaller_and_changes_nothing_else(make_engine, monkeypatch):
    expected = tokens(make_engine().sample(request()))
    decode, sizes = engine_module.decode_batch, []

    def decode_at_most_three(model, prompts, *rest):
        sizes.append(sum(len(prompt.uniforms) for prompt in prompts))
        if sizes[-1] > 3:
            raise torch.OutOfMemoryError("too many")
        return decode(model, prompts, *rest)

    monkeypatch.setattr(engine_module, "decode_batch", decode_at_most_three)
    engine = make_engine()
    assert tokens(engine.sample(request())) == expected
    assert sizes[0] == 16
    sizes.clear()
    engine.sample(request())
    assert max(sizes) <= 3


def test_out_of_memory_for_a_single_completion_is_one_clear_line(make_engine, monkeypatch):
    def fail(*_):
        raise torch.OutOfMemoryError("no memory at all")

    monkeypatch.setattr(engine_module, "decode_batch", fail)
    with pytest.raises(GenerationError, match="not enough GPU memory"):
        make_engine().sample(request())


def test_prompt_near_the_end_of_the_context_gets_shorter_completions(make_engine):
    long = Prompt(style="plain", text="1" * 90)
    reply = make_engine(ends=0).sample(request(prompts=(long, PROMPTS[0])))
    assert {len(completion.token_ids_T) for completion in reply.groups[0].completions_G} == {6}
    assert {len(completion.token_ids_T) for completion in reply.groups[1].completions_G} == {12}
    assert {completion.finish_reason for completion in completions(reply)} == {FinishReason.LENGTH}


@pytest.mark.parametrize("tied", [True, False])
def test_engine_updated_from_a_to_b_equals_a_fresh_b(make_engine, make_model, tokenizer, channel_name, tied):
    weights_b = make_model(tied=tied, seed=2)
    engine = make_engine(tied=tied, seed=0)
    before = engine.sample(request())
    tensors = dict(weights_b.named_parameters())
    with WeightWriter.create(channel_name, tensors) as writer:
        writer.publish(3, tensors)
        reply = engine.load_weights(LoadWeightsRequest(handle=writer.handle, version=3))
        assert reply.version == 3
    after = engine.sample(request())
    assert {group.policy_version for group in after.groups} == {3}
    assert tokens(after) != tokens(before)
    assert completions(after) == completions(make_engine(weights_b).sample(request()))
    assert_logprobs_are_those_of(make_model(tied=tied, seed=2), tokenizer, after)


def test_each_version_of_a_row_of_updates_is_really_loaded(make_engine, make_model, tokenizer, channel_name):
    engine, trained = make_engine(), make_model(seed=1)
    tensors = dict(trained.named_parameters())
    with WeightWriter.create(channel_name, tensors) as writer:
        for version in range(1, 4):
            with torch.no_grad():
                for parameter in trained.parameters():
                    parameter.mul_(1.1)
            writer.publish(version, tensors)
            engine.load_weights(LoadWeightsRequest(handle=writer.handle, version=version))
            reply = engine.sample(request())
            assert {group.policy_version for group in reply.groups} == {version}
            assert_logprobs_are_those_of(trained, tokenizer, reply)


def test_newest_version_is_loaded_also_when_an_older_one_is_asked_for(make_engine, make_model, channel_name):
    engine = make_engine()
    tensors = dict(make_model(seed=1).named_parameters())
    with WeightWriter.create(channel_name, tensors) as writer:
        writer.publish(1, tensors)
        writer.publish(2, tensors)
        assert engine.load_weights(LoadWeightsRequest(handle=writer.handle, version=1)).version == 2


def test_engine_moves_to_another_channel(make_engine, make_model, channel_name):
    engine = make_engine()
    for number, seed in ((1, 1), (2, 2)):
        tensors = dict(make_model(seed=seed).named_parameters())
        with WeightWriter.create(f"{channel_name}-{number}", tensors) as writer:
            writer.publish(number, tensors)
            engine.load_weights(LoadWeightsRequest(handle=writer.handle, version=number))
    fresh = make_engine(make_model(seed=2))
    assert tokens(engine.sample(request())) == tokens(fresh.sample(request()))


def test_ready_says_what_was_loaded(make_engine, tokenizer):
    ready = make_engine().ready
    assert (ready.engine, ready.device, ready.dtype) == ("transformers", "cpu", "float32")
    assert ready.context_tokens == 96
    assert ready.tokenizer_fingerprint == fingerprint(tokenizer)
