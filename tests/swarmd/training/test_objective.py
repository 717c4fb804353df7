"""The loss of whole steps, with corrections and filters, against formulas in plain numbers."""

import math

import msgspec
import pytest

from swarmd.training.messages import TrainingOptions
from swarmd.training.trainer import Trainer
from swarmd.types import Prompt

EIGHT = Prompt("plain", "<question>Calculate 5 + 3.<answer>")


def make_trainer(policy, tokenizer, **options) -> Trainer:
    return Trainer(
        policy, tokenizer, TrainingOptions(**({"warmup_steps": 0} | options)), max_new_tokens=16, seed=0
    )


def logprobs_of(group, policy, make_group):
    """Per completion, what `policy` gives its tokens, by the model's plain forward."""
    pairs = [(c.text, reward) for c, reward in zip(group.completions_G, group.rewards_G, strict=True)]
    own = make_group(pairs, policy, prompt=group.prompt)
    return [completion.logprobs_T for completion in own.completions_G]


def advantages_of(group):
    mean = sum(group.rewards_G) / len(group.rewards_G)
    std = math.sqrt(sum((reward - mean) ** 2 for reward in group.rewards_G) / len(group.rewards_G))
    return [(reward - mean) / (std + 1e-4) for reward in group.rewards_G]


def claiming(group, logprobs_GT):
    """A peer's group that came with log-probabilities."""
    completions_G = tuple(
        msgspec.structs.replace(completion, logprobs_T=values)
        for completion, values in zip(group.completions_G, logprobs_GT, strict=True)
    )
    return msgspec.structs.replace(group, completions_G=completions_G)


def reference_loss(groups, policy, make_group, token_loss):
    """Mean over tokens of `token_loss(is_local, advantage, now, sampled with or None, completion)`."""
    total, tokens = 0.0, 0
    for group in groups:
        rows = zip(
            group.completions_G,
            advantages_of(group),
            logprobs_of(group, policy, make_group),
            strict=True,
        )
        for completion, advantage, now_T in rows:
            behaviour_T = completion.logprobs_T or [None] * len(now_T)
            pairs = list(zip(now_T, behaviour_T, strict=True))
            total += sum(token_loss(group.is_local, advantage, now, b, pairs) for now, b in pairs)
            tokens += len(now_T)
    return total / tokens


@pytest.fixture
def groups(make_policy, make_group):
    """Own, sampled by another policy; a peer's with log-probabilities; a peer's without."""
    older, sender = make_policy(seed=1), make_policy(seed=2)
    peers = make_group({"8": 1, "7": 0, "five": 0}, prompt=EIGHT)
    claimed = claiming(peers, logprobs_of(peers, sender, make_group))
    silent = make_group({"9": 0, "8": 1, "11 11": 0}, prompt=EIGHT)
    return [make_group({"8": 1, "12": 0, "3 + 5": 0.5}, older), claimed, silent]


def ppo(ratio, advantage):
    return -min(ratio * advantage, min(max(ratio, 0.8), 1.28) * advantage)


def own_loss(kind, advantage, now, behaviour, pairs):
    if kind == "clipped":
        return ppo(math.exp(now - behaviour), advantage)
    if kind == "none":
        return -advantage
    if kind == "token_truncated":
        return -min(math.exp(now - behaviour), 2.0) * advantage * now
    if kind == "decoupled":
        return -min(math.exp(now - behaviour), 2.0) * advantage
    mean = sum(n - b for n, b in pairs) / len(pairs)
    return ppo(math.exp(mean) if advantage > 0 else min(math.exp(mean), 2.0), advantage)


@pytest.mark.parametrize("kind", ["clipped", "none", "token_truncated", "sequence_geometric", "decoupled"])
def test_a_step_corrects_own_groups_by_their_sampler_and_takes_peers_as_its_own(
    make_policy, make_group, tokenizer, groups, kind
):
    policy = make_policy()

    def token_loss(is_local, advantage, now, behaviour, pairs):
        if is_local:
            return own_loss(kind, advantage, now, behaviour, pairs)
        # The policy at the start is the policy as it is; only the truncated loss is not a ratio.
        return -advantage * (now if kind == "token_truncated" else 1.0)

    expected = reference_loss(groups, policy, make_group, token_loss)
    metrics = make_trainer(policy, tokenizer, importance=kind).step(groups)
    assert metrics.loss == pytest.approx(expected, rel=1e-4)
    assert metrics.dropped_share == 0.0


def test_mask_leaves_out_improbable_tokens_of_peers_and_nothing_of_its_own(
    make_policy, make_group, tokenizer, groups
):
    policy = make_policy()
    dropped = []

    def token_loss(is_local, advantage, now, behaviour, pairs):
        if is_local:
            return own_loss("clipped", advantage, now, behaviour, pairs)
        dropped.append(advantage < 0 and math.exp(now) < 0.01)
        return 0.0 if dropped[-1] else -advantage

    expected = reference_loss(groups, policy, make_group, token_loss)
    metrics = make_trainer(policy, tokenizer, external="mask", mask_probability=0.01).step(groups)
    assert metrics.loss == pytest.approx(expected, rel=1e-4)
    assert 0 < metrics.dropped_share < 1
    assert metrics.dropped_share == pytest.approx(sum(dropped) / len(dropped))


def test_f_tis_weighs_by_the_senders_logprobs_and_drops_distant_failures(
    make_policy, make_group, tokenizer, groups
):
    policy = make_policy()
    kls = {}
    for advantage, own_T, completion in zip(
        advantages_of(groups[1]),
        logprobs_of(groups[1], policy, make_group),
        groups[1].completions_G,
        strict=True,
    ):
        terms = [math.expm1(o - s) - (o - s) for o, s in zip(own_T, completion.logprobs_T, strict=True)]
        kls[completion.text] = (advantage, sum(terms) / len(terms))
    failures = sorted(kl for advantage, kl in kls.values() if advantage < 0)
    # One of the two failures is above it.
    most_kl = sum(failures) / 2

    def token_loss(is_local, advantage, now, behaviour, pairs):
        if is_local:
            return own_loss("clipped", advantage, now, behaviour, pairs)
        if behaviour is None:
            return 0.0 if advantage < 0 and math.exp(now) < 0.01 else -advantage
        kl = sum(math.expm1(n - b) - (n - b) for n, b in pairs) / len(pairs)
        if advantage < 0 and kl > most_kl:
            return 0.0
        return -min(math.exp(now - behaviour), 1.5) * advantage * now

    expected = reference_loss(groups, policy, make_group, token_loss)
    options = {"external_cap": 1.5, "external_max_kl": most_kl, "mask_probability": 0.01}
    metrics = make_trainer(policy, tokenizer, external="f_tis", **options).step(groups)
    assert metrics.loss == pytest.approx(expected, rel=1e-4)
    assert metrics.dropped_share > 0


def test_no_lie_of_a_peer_makes_a_loss_or_gradient_that_is_not_finite(
    make_policy, make_group, tokenizer, groups
):
    tokens = [len(completion.logprobs_T) for completion in groups[1].completions_G]
    for lie in (-1e30, 0.0, -1e300, 1e300):
        lying = claiming(groups[1], [(lie,) * count for count in tokens])
        metrics = make_trainer(make_policy(), tokenizer, external="f_tis").step([groups[0], lying])
        assert (metrics.updates, metrics.skipped_updates) == (1, 0), lie
        assert math.isfinite(metrics.grad_norm)


@pytest.mark.parametrize("kind", ["none", "decoupled"])
def test_later_updates_are_held_against_the_policy_at_the_start_of_the_step(
    make_policy, make_group, tokenizer, kind
):
    policy = make_policy()
    group = make_group({"8": 1, "12": 0}, policy, prompt=EIGHT)
    options = {"importance": kind, "learning_rate": 0.02}
    assert make_trainer(make_policy(), tokenizer, **options).step([group]).clipped_share == 0.0
    thrice = make_trainer(make_policy(), tokenizer, **options, inner_epochs=3).step([group])
    assert thrice.updates == 3
    assert thrice.clipped_share > 0.2
    # What is said of the sampler is taken from before the first update, where both were the same.
    assert thrice.sampler_kl == pytest.approx(0.0, abs=1e-6)
    assert thrice.effective_share == pytest.approx(1.0, abs=1e-4)


def test_metrics_say_how_far_the_sampler_was(make_policy, make_group, tokenizer, groups):
    policy = make_policy()
    own = groups[0]
    differences = [
        now - behaviour
        for completion, now_T in zip(own.completions_G, logprobs_of(own, policy, make_group), strict=True)
        for now, behaviour in zip(now_T, completion.logprobs_T, strict=True)
    ]
    weights = [math.exp(difference) for difference in differences]
    trainer = make_trainer(policy, tokenizer)
    trainer.policy_version = 3
    metrics = trainer.step(groups)
    assert metrics.sampler_kl == pytest.approx(
        sum(math.expm1(d) - d for d in differences) / len(differences), rel=1e-3
    )
    assert metrics.effective_share == pytest.approx(
        sum(weights) ** 2 / (len(weights) * sum(weight**2 for weight in weights)), rel=1e-3
    )
    assert 0 < metrics.effective_share < 0.9
    assert metrics.lag_groups == (0, 0, 0, 1)


@pytest.mark.parametrize("mode", ["off", "warn", "drop"])
def test_a_rewarded_completion_that_the_policy_would_hardly_say_is_counted_and_dropped(
    make_policy, make_group, tokenizer, mode
):
    policy = make_policy()
    groups = [
        make_group({"8": 1, "12": 0}, policy),
        make_group({"3 3 + 9": 1, "8 8 8": 0, "5": 0}, prompt=EIGHT),
        make_group({"7": 1, "11": 0}, prompt=EIGHT),
    ]
    means = [
        sum(values) / len(values)
        for values in (logprobs_of(group, policy, make_group)[0] for group in groups[1:])
    ]
    # Between the two: one of the peers' groups has a rewarded completion below it.
    floor = sum(means) / 2
    unlikely = groups[1 + means.index(min(means))]

    def token_loss(is_local, advantage, now, behaviour, pairs):
        if is_local:
            return own_loss("clipped", advantage, now, behaviour, pairs)
        is_dropped = mode == "drop" and advantage > 0 and sum(n for n, _ in pairs) / len(pairs) < floor
        return 0.0 if is_dropped else -advantage

    expected = reference_loss(groups, policy, make_group, token_loss)
    metrics = make_trainer(policy, tokenizer, unlikely=mode, unlikely_below=floor).step(groups)
    assert metrics.loss == pytest.approx(expected, rel=1e-4)
    assert metrics.unlikely_groups == ({} if mode == "off" else {unlikely.author: 1})
    assert (metrics.dropped_share > 0) == (mode == "drop")


def test_own_groups_are_never_screened(make_policy, make_group, tokenizer):
    policy = make_policy()
    own = make_group({"3 3 + 9": 1, "8": 0}, policy)
    metrics = make_trainer(policy, tokenizer, unlikely="drop", unlikely_below=0.0).step([own])
    assert metrics.unlikely_groups == {}
    assert metrics.updates == 1
