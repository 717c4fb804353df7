import math

import pytest
import torch

from swarmd.errors import TrainingError
from swarmd.models.tokenization import encode_prompt
from swarmd.training.messages import TrainingOptions
from swarmd.training.trainer import Trainer
from swarmd.types import FinishReason, Prompt

EIGHT = Prompt("plain", "<question>Calculate 5 + 3.<answer>")


def make_trainer(policy, tokenizer, *, seed=0, reference=None, **options) -> Trainer:
    options = TrainingOptions(**({"warmup_steps": 0} | options))
    return Trainer(policy, tokenizer, options, max_new_tokens=16, seed=seed, reference=reference)


def weights_of(policy):
    return {name: parameter.detach().clone() for name, parameter in policy.parameters.items()}


def are_equal(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def probability(policy, tokenizer, text, prompt=EIGHT, end=True):
    """Of a completion, or of only its end token given the rest, by the model's own plain forward."""
    text_ids = tokenizer.encode(text, add_special_tokens=False) + [tokenizer.eos_token_id] * end
    prompt_ids = encode_prompt(tokenizer, prompt)
    with torch.no_grad():
        logits_TV = policy.model(torch.tensor([prompt_ids + text_ids])).logits[0]
    logprobs_TV = torch.log_softmax(logits_TV[len(prompt_ids) - 1 : -1], dim=-1)
    return logprobs_TV.gather(-1, torch.tensor(text_ids).unsqueeze(-1)).squeeze(-1).exp()


def reference_step_loss(policy, tokenizer, groups, aggregation):
    """The loss of a batch from the formula: one plain forward per completion, python numbers after it."""
    per_sequence, tokens = [], 0
    for group in groups:
        mean = sum(group.rewards_G) / len(group.rewards_G)
        std = math.sqrt(sum((reward - mean) ** 2 for reward in group.rewards_G) / len(group.rewards_G))
        for completion, reward in zip(group.completions_G, group.rewards_G, strict=True):
            end = completion.finish_reason is FinishReason.STOP
            now_T = probability(policy, tokenizer, completion.text, group.prompt, end).log().tolist()
            old_T = now_T if completion.logprobs_T is None else completion.logprobs_T
            advantage = (reward - mean) / (std + 1e-4)
            terms_T = []
            for now, old in zip(now_T, old_T, strict=True):
                ratio = math.exp(now - old)
                terms_T.append(-min(ratio * advantage, min(max(ratio, 0.8), 1.28) * advantage))
            per_sequence.append(terms_T)
            tokens += len(terms_T)
    if aggregation == "token":
        return sum(sum(terms_T) for terms_T in per_sequence) / tokens
    if aggregation == "sequence":
        return sum(sum(terms_T) / len(terms_T) for terms_T in per_sequence) / len(per_sequence)
    return sum(sum(terms_T) for terms_T in per_sequence) / (len(per_sequence) * 16)


@pytest.fixture
def mixed_batch(make_policy, make_group):
    """Own groups sampled by an older policy, peers' groups, one group without signal."""
    older = make_policy(seed=1)
    return [
        make_group({"8": 1, "12": 0, "3 + 5": 0.5}, older),
        make_group({"8": 1, "7": 0, "five": 0}, prompt=EIGHT),
        make_group({"8": 0, "7": 0}, prompt=EIGHT, finish_reason=FinishReason.LENGTH),
        make_group({"9": 0, "8": 1, "11 11": 0}, prompt=EIGHT, finish_reason=FinishReason.LENGTH),
    ]


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
@pytest.mark.parametrize("tied", [True, False])
def test_loss_of_a_step_equals_the_formula(make_policy, tokenizer, mixed_batch, aggregation, tied):
    policy = make_policy(tied=tied)
    expected = reference_step_loss(policy, tokenizer, mixed_batch, aggregation)
    metrics = make_trainer(policy, tokenizer, loss_aggregation=aggregation).step(mixed_batch)
    assert metrics.loss == pytest.approx(expected, rel=1e-4)
    assert (metrics.groups, metrics.groups_with_signal, metrics.updates) == (4, 3, 1)


def test_gradient_of_a_step_is_that_of_the_formula(make_policy, tokenizer, make_group):
    """On-policy and with one update, the gradient is that of -advantage * log-probability."""
    policy = make_policy()
    groups = [make_group({"8": 1, "12": 0}, policy), make_group({"8": 0, "7": 0}, policy)]
    trainer = make_trainer(policy, tokenizer, max_grad_norm=1e9)
    seen = {}
    trainer._optimizer.register_step_pre_hook(
        lambda *_: seen.update({name: p.grad.clone() for name, p in policy.parameters.items()})
    )
    tokens = sum(len(completion.token_ids_T) for group in groups for completion in group.completions_G)
    before = make_policy()
    prompt_ids = encode_prompt(tokenizer, groups[0].prompt)
    advantage = 0.5 / (0.5 + 1e-4)
    for completion, sign in zip(groups[0].completions_G, (1, -1), strict=True):
        ids = list(completion.token_ids_T)
        logits_TV = before.model(torch.tensor([prompt_ids + ids]), use_cache=False).logits[0]
        logprobs_TV = torch.log_softmax(logits_TV[len(prompt_ids) - 1 : -1], dim=-1)
        chosen_T = logprobs_TV.gather(-1, torch.tensor(ids).unsqueeze(-1))
        (-sign * advantage * chosen_T.sum() / tokens).backward()
    metrics = trainer.step(groups)
    for name, parameter in before.parameters.items():
        assert torch.allclose(seen[name], parameter.grad, atol=1e-5), name
    assert metrics.grad_norm == pytest.approx(
        float(torch.stack([p.grad.norm() for p in before.parameters.values()]).norm()), rel=1e-4
    )


def test_groups_without_signal_count_in_the_denominator(make_policy, tokenizer, make_group):
    with_signal = make_group({"8": 1, "12": 0})
    without = make_group({"8": 0, "12": 0})
    norms = [
        make_trainer(make_policy(), tokenizer).step([with_signal, *[without] * count]).grad_norm
        for count in (0, 1, 3)
    ]
    assert norms[0] == pytest.approx(2 * norms[1], rel=1e-4)
    assert norms[0] == pytest.approx(4 * norms[2], rel=1e-4)


def test_training_makes_rewarded_completions_likelier_and_others_rarer(make_policy, tokenizer, make_group):
    policy = make_policy()
    trainer = make_trainer(policy, tokenizer, learning_rate=3e-3)
    texts = ["8", "12", "seven"]
    before = [float(probability(policy, tokenizer, text).prod()) for text in texts]
    for _ in range(5):
        trainer.step([make_group({"8": 1, "12": 0, "seven": 0}, prompt=EIGHT)])
    after = [float(probability(policy, tokenizer, text).prod()) for text in texts]
    assert after[0] > 2 * before[0]
    assert after[1] < before[1]
    assert after[2] < before[2]


@pytest.mark.parametrize("is_own", [True, False])
def test_the_end_token_is_trained_when_decoding_stopped_and_only_then(
    make_policy, tokenizer, make_group, is_own
):
    gains = {}
    for reason in FinishReason:
        policy = make_policy()
        group = make_group(
            {"8": 1, "12 12": 0}, policy if is_own else None, prompt=EIGHT, finish_reason=reason
        )
        before = float(probability(policy, tokenizer, "8")[-1])
        trainer = make_trainer(policy, tokenizer, learning_rate=1e-3)
        for _ in range(3):
            trainer.step([group])
        gains[reason] = float(probability(policy, tokenizer, "8")[-1]) / before
    assert gains[FinishReason.STOP] > 1.1
    assert gains[FinishReason.STOP] > 1.1 * gains[FinishReason.LENGTH]


def test_a_batch_without_any_signal_changes_nothing(make_policy, tokenizer, make_group):
    policy = make_policy()
    trainer = make_trainer(policy, tokenizer, weight_decay=0.1)
    before = weights_of(policy)
    for groups in ([make_group({"8": 1, "7": 1}), make_group({"8": 0, "7": 0}, policy)], []):
        metrics = trainer.step(groups)
        assert (metrics.updates, metrics.skipped_updates, metrics.loss) == (0, 0, None)
        assert metrics.groups == len(groups)
    assert are_equal(weights_of(policy), before)
    assert (trainer.policy_version, trainer.steps) == (0, 0)


def test_the_version_advances_once_for_a_step_whatever_the_number_of_updates(
    make_policy, tokenizer, mixed_batch
):
    trainer = make_trainer(make_policy(), tokenizer, inner_epochs=2, minibatches=2)
    metrics = trainer.step(mixed_batch)
    assert metrics.updates == trainer.steps == 4
    assert trainer.policy_version == 1


def test_a_loss_that_is_not_finite_skips_the_update_and_is_counted(make_policy, tokenizer, make_group):
    policy = make_policy()
    trainer = make_trainer(policy, tokenizer)
    good = make_group({"8": 1, "12": 0}, policy)
    trainer.step([good])
    before, state = weights_of(policy), {k: v.clone() for k, v in trainer.state().optimizer.items()}
    bad = make_group({"8": 0, "12": 1}, policy, logprob_shift=-math.inf)
    metrics = trainer.step([good, bad])
    assert (metrics.updates, metrics.skipped_updates, metrics.total_skipped_updates) == (0, 1, 1)
    assert metrics.loss is None
    assert are_equal(weights_of(policy), before)
    assert are_equal(trainer.state().optimizer, state)
    assert trainer.policy_version == 1
    metrics = trainer.step([good])
    assert (metrics.updates, metrics.skipped_updates, metrics.total_skipped_updates) == (1, 0, 1)
    assert trainer.policy_version == 2


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_skips_the_update_and_is_counted(
    make_policy, tokenizer, make_group, value
):
    policy = make_policy()
    trainer = make_trainer(policy, tokenizer)
    before = weights_of(policy)
    group = make_group({"8": 1, "12": 0})
    parameter = policy.parameters["model.layers.0.mlp.up_proj.weight"]
    hook = parameter.register_hook(lambda gradient: torch.full_like(gradient, value))
    metrics = trainer.step([group])
    assert (metrics.updates, metrics.skipped_updates) == (0, 1)
    assert are_equal(weights_of(policy), before)
    hook.remove()
    assert trainer.step([group]).updates == 1
    assert all(torch.isfinite(tensor).all() for tensor in weights_of(policy).values())


def test_a_skipped_minibatch_does_not_stop_the_others(make_policy, tokenizer, make_group):
    policy = make_policy()
    bad = make_group({"8": 0, "12": 1}, policy, logprob_shift=-math.inf)
    trainer = make_trainer(policy, tokenizer, minibatches=2)
    metrics = trainer.step([make_group({"8": 1, "12": 0}), bad])
    assert (metrics.updates, metrics.skipped_updates) == (1, 1)


def test_the_ratio_of_own_tokens_is_taken_against_the_sampler(make_policy, tokenizer, make_group):
    policy = make_policy()
    metrics = make_trainer(policy, tokenizer).step([make_group({"8": 1, "12": 0}, policy)])
    assert metrics.mean_ratio == pytest.approx(1.0, abs=1e-4)
    assert metrics.sampler_gap == pytest.approx(0.0, abs=1e-4)
    policy = make_policy()
    shifted = make_group({"8": 1, "12": 0}, policy, logprob_shift=-0.4)
    metrics = make_trainer(policy, tokenizer).step([shifted])
    assert metrics.mean_ratio == pytest.approx(math.exp(0.4), rel=1e-3)
    assert metrics.sampler_gap == pytest.approx(0.4, rel=1e-3)
    # 8 and its end are better than average and already above 1.28: held. 12 and its end are not.
    assert metrics.clipped_share == pytest.approx(2 / 5)


def test_the_gap_to_the_sampler_leaves_out_groups_of_older_versions(make_policy, tokenizer, make_group):
    policy = make_policy()
    trainer = make_trainer(policy, tokenizer)
    trainer.step([make_group({"8": 1, "12": 0}, policy)])
    old = make_group({"8": 1, "12": 0}, policy, policy_version=0, logprob_shift=-0.4)
    metrics = trainer.step([old])
    assert metrics.sampler_gap is None
    assert metrics.mean_ratio == pytest.approx(math.exp(0.4), rel=1e-3)


def test_peers_groups_start_at_ratio_one_and_the_clip_acts_in_later_passes(
    make_policy, tokenizer, make_group
):
    group = make_group({"8": 1, "12": 0}, prompt=EIGHT)
    once = make_trainer(make_policy(), tokenizer, learning_rate=0.02).step([group])
    assert once.clipped_share == 0.0
    assert once.mean_ratio is None  # Of own tokens only.
    thrice = make_trainer(make_policy(), tokenizer, learning_rate=0.02, inner_epochs=3).step([group])
    assert thrice.updates == 3
    assert thrice.clipped_share > 0.2


def test_entropy_is_the_mean_surprise_of_own_samples_with_and_without_signal(
    make_policy, tokenizer, make_group
):
    policy = make_policy()
    own = [make_group({"8": 1, "12": 0}, policy), make_group({"8": 0, "five": 0}, policy)]
    values = [-v for group in own for completion in group.completions_G for v in completion.logprobs_T]
    metrics = make_trainer(policy, tokenizer, inner_epochs=2).step([*own, make_group({"1": 1, "2": 0})])
    assert metrics.entropy == pytest.approx(sum(values) / len(values))


def test_kl_penalty_pulls_towards_the_reference(make_policy, tokenizer, make_group):
    group = make_group({"8": 1, "12": 0}, prompt=EIGHT)

    def drift(kl_weight):
        policy, start = make_policy(), make_policy()
        reference = make_policy() if kl_weight else None
        trainer = make_trainer(
            policy, tokenizer, kl_weight=kl_weight, reference=reference, learning_rate=3e-3
        )
        metrics = [trainer.step([group]) for _ in range(6)]
        moved = probability(policy, tokenizer, "8").log() - probability(start, tokenizer, "8").log()
        return float(moved.abs().sum()), metrics

    free, free_metrics = drift(0.0)
    held, held_metrics = drift(5.0)
    assert held < 0.5 * free
    assert {metrics.kl for metrics in free_metrics} == {None}
    assert held_metrics[0].kl == pytest.approx(0, abs=1e-5)
    assert held_metrics[-1].kl > 1e-4


def test_with_a_kl_weight_groups_without_signal_are_pulled_to_the_reference(
    make_policy, tokenizer, make_group
):
    policy, reference = make_policy(), make_policy(seed=1)
    trainer = make_trainer(policy, tokenizer, kl_weight=1.0, reference=reference, learning_rate=1e-3)
    group = make_group({"8": 0, "12": 0})
    kls = [trainer.step([group]).kl for _ in range(10)]
    assert kls[-1] < 0.8 * kls[0]


def test_a_kl_weight_needs_a_reference(make_policy, tokenizer):
    with pytest.raises(TrainingError, match="reference"):
        make_trainer(make_policy(), tokenizer, kl_weight=0.1)


def test_the_gradient_norm_is_clipped(make_policy, tokenizer, make_group):
    trainer = make_trainer(make_policy(), tokenizer, max_grad_norm=0.01)
    norms = []
    trainer._optimizer.register_step_pre_hook(
        lambda *_: norms.append(
            float(torch.stack([p.grad.norm() for p in trainer.policy.parameters.values()]).norm())
        )
    )
    metrics = trainer.step([make_group({"8": 1, "12": 0})])
    assert metrics.grad_norm > 0.01
    assert norms == [pytest.approx(0.01, rel=1e-3)]


def test_the_schedule_sets_the_learning_rate_of_each_update(make_policy, tokenizer, make_group):
    options = {"learning_rate": 0.01, "warmup_steps": 2, "schedule": "linear", "schedule_steps": 4}
    trainer = make_trainer(make_policy(), tokenizer, **options)
    used = []
    trainer._optimizer.register_step_pre_hook(
        lambda optimizer, *_: used.append(optimizer.param_groups[0]["lr"])
    )
    shown = [trainer.step([make_group({"8": 1, "12": 0})]).learning_rate for _ in range(5)]
    assert used == pytest.approx([0.005, 0.01, 0.01, 0.005, 0.0])
    assert shown == pytest.approx([0.01, 0.01, 0.005, 0.0, 0.0])


def test_a_restored_trainer_goes_on_bit_for_bit(make_policy, tokenizer, mixed_batch):
    options = {"inner_epochs": 2, "minibatches": 3, "warmup_steps": 8, "weight_decay": 0.01}
    trainer = make_trainer(make_policy(), tokenizer, **options)
    trainer.step(mixed_batch)
    trainer.step(mixed_batch)
    # Other weights and another seed, to see that all of it is replaced.
    resumed = make_trainer(make_policy(seed=5), tokenizer, seed=99, **options)
    resumed.step(mixed_batch)
    resumed.restore(trainer.state())
    for _ in range(3):
        left, right = trainer.step(mixed_batch), resumed.step(mixed_batch)
        assert (left.loss, left.grad_norm, left.clipped_share) == (
            right.loss,
            right.grad_norm,
            right.clipped_share,
        )
    assert are_equal(weights_of(trainer.policy), weights_of(resumed.policy))
    assert are_equal(trainer.state().optimizer, resumed.state().optimizer)
    assert (
        (trainer.policy_version, trainer.steps)
        == (resumed.policy_version, resumed.steps)
        == (5, trainer.steps)
    )


def test_weights_of_another_shape_are_not_restored(make_policy, tokenizer):
    untied = make_trainer(make_policy(tied=False), tokenizer)
    trainer = make_trainer(make_policy(), tokenizer)
    before = weights_of(trainer.policy)
    with pytest.raises(TrainingError, match="the shapes do not match"):
        trainer.restore(untied.state())
    assert are_equal(weights_of(trainer.policy), before)


def test_out_of_memory_halves_what_is_forwarded_at_once_and_the_step_is_the_same(
    make_policy, tokenizer, mixed_batch, monkeypatch
):
    monkeypatch.setattr("swarmd.training.room.FEWEST_TOKENS_AT_ONCE", 1)
    plenty = make_trainer(make_policy(), tokenizer)
    expected = plenty.step(mixed_batch)
    scarce = make_trainer(make_policy(), tokenizer, tokens_at_once=128)
    rows_seen = []

    def refuse_many_rows(module, arguments, keywords):
        rows = keywords["input_ids"].shape[0]
        if rows > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        rows_seen.append(rows)

    scarce.policy.model.base_model.register_forward_pre_hook(refuse_many_rows, with_kwargs=True)
    metrics = scarce.step(mixed_batch)
    assert rows_seen
    assert metrics.updates == 1
    assert metrics.loss == pytest.approx(expected.loss, rel=1e-4)
    assert metrics.grad_norm == pytest.approx(expected.grad_norm, rel=1e-4)
    assert metrics.mean_ratio == pytest.approx(expected.mean_ratio, rel=1e-4)
    assert metrics.clipped_share == pytest.approx(expected.clipped_share)


def test_memory_that_is_never_enough_is_raised(make_policy, tokenizer, make_group):
    trainer = make_trainer(make_policy(), tokenizer)

    def refuse(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    trainer.policy.model.base_model.register_forward_pre_hook(refuse)
    with pytest.raises(torch.OutOfMemoryError):
        trainer.step([make_group({"8": 1, "12": 0})])


def test_groups_that_do_not_fit_the_context_are_counted_and_the_rest_is_learned(
    make_policy, tokenizer, make_group
):
    trainer = make_trainer(make_policy(), tokenizer)
    too_long = make_group({"8": 1, "12": 0}, prompt=Prompt("plain", "1 " * 200))
    metrics = trainer.step([too_long, make_group({"8": 1, "12": 0})])
    assert (metrics.dropped_groups, metrics.groups, metrics.updates) == (1, 1, 1)
