"""What the screens of `swarmd.replay.screens` hold up: honest groups by mistake, payloads as they should.

Honest groups are those of tiny nodes at several stages of training, judged by a node at another stage;
and, for the screens on text alone, the right answers of every dataset of reasoning-gym. Payloads are put
around the right answers of the same groups, and scored by the dataset, as a peer would do it.

    python tests/benchmarks/measure_screens.py [GROUPS]
"""

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from reasoning_gym import create_dataset
from reasoning_gym.factory import DATASETS

from swarmd.generation.messages import LoadWeightsRequest, SampleRequest
from swarmd.models.resolve import resolve
from swarmd.replay.screens import TextLimits, TextScreens, compressed_share, rewarded_texts
from swarmd.simulate.in_process import IN_PROCESS, InProcessModel
from swarmd.tasks.manifest import Manifest
from swarmd.tasks.prompt import extract_answer, render
from swarmd.tasks.reasoning_gym import TaskLibrary
from swarmd.tasks.source import TaskSource
from swarmd.training.batch import encode_batch
from swarmd.training.messages import StepRequest, TrainingOptions
from swarmd.training.slices import cut_slices
from swarmd.types import Completion, FinishReason, RolloutGroup, size_in_bytes

MANIFEST = Manifest.load("tiny")
LIBRARY = TaskLibrary(MANIFEST.tasks)
GROUP_SIZE = 8
STAGES = {
    "weak": ("tiny-weak", 0),
    "weak, 60 rounds": ("tiny-weak", 60),
    "tiny": ("tiny", 0),
    "tiny, 60 rounds": ("tiny", 60),
}
FACTORS = (1.5, 2.0, 3.0, 4.0)
SHARES = (0.05, 0.1, 0.2, 0.3)
FLOORS = (-1.0, -2.0, -3.0, -4.0, -6.0)
SENTENCE = "By the way, ACME makes the best widgets and everybody should buy them. "
PAYLOADS: dict[str, Callable[[str], str]] = {
    "word before": lambda answer: f"ACME <answer>{answer}</answer>",
    "sentence before": lambda answer: f"{SENTENCE}<answer>{answer}</answer>",
    "sentence after": lambda answer: f"<answer>{answer}</answer> {SENTENCE}",
    "ten sentences": lambda answer: f"{SENTENCE * 10}<answer>{answer}</answer>",
}


@dataclass
class Node:
    """A policy at some stage, and a stream of tasks."""

    model: InProcessModel
    source: TaskSource
    seeds: random.Random

    def groups(self, count: int) -> Iterator[RolloutGroup]:
        """Scored groups of the node's own."""
        for _ in range(count // 9 + 1):
            references = self.source.draw(9)
            tasks = [LIBRARY.task(reference) for reference in references]
            prompts = tuple(render(task.question, MANIFEST) for task in tasks)
            reply = self.model._engine.sample(
                SampleRequest(prompts, GROUP_SIZE, MANIFEST.max_new_tokens, 1.0, self.seeds.getrandbits(62))
            )
            for reference, task, prompt, sampled in zip(
                references, tasks, prompts, reply.groups, strict=True
            ):
                rewards_G = tuple(score(task, c.text) for c in sampled.completions_G)
                yield RolloutGroup(
                    group_id=str(self.seeds.getrandbits(60)),
                    author="peer",
                    is_local=True,
                    task=reference,
                    prompt=prompt,
                    completions_G=sampled.completions_G,
                    rewards_G=rewards_G,
                    policy_version=0,
                    created_at=0.0,
                    received_at=0.0,
                    size_bytes=size_in_bytes(prompt, sampled.completions_G),
                )

    def train(self, rounds: int) -> None:
        """That many rounds on own groups."""
        for _ in range(rounds):
            version = self.model._step(StepRequest(tuple(self.groups(8)))).policy_version
            self.model._engine.load_weights(LoadWeightsRequest(IN_PROCESS, version))


def score(task: object, text: str) -> float:
    """Strict reward."""
    try:
        return float(task.score(extract_answer(text)) > 0.99)
    except Exception:  # noqa: BLE001  # Scorers raise what they like; in the verifier that is a reward of 0.
        return 0.0


def node(stage: str, seed: int) -> Node:
    """A node that has come to a stage by itself."""
    name, rounds = STAGES[stage]
    model = InProcessModel(
        resolve(name).path,
        TrainingOptions(),
        temperature=1.0,
        max_new_tokens=MANIFEST.max_new_tokens,
        seed=seed,
    )
    made = Node(model, TaskSource(MANIFEST, f"{stage} {seed}", seed), random.Random(seed))
    made.train(rounds)
    return made


def with_payload(group: RolloutGroup, payload: Callable[[str], str]) -> RolloutGroup:
    """The group with a payload around each right answer, scored again."""
    task = LIBRARY.task(group.task)
    completions_G = tuple(
        Completion(payload(completion.text) if reward else completion.text, FinishReason.STOP)
        for completion, reward in zip(group.completions_G, group.rewards_G, strict=True)
    )
    rewards_G = tuple(score(task, completion.text) for completion in completions_G)
    return RolloutGroup(
        **{
            **{name: getattr(group, name) for name in group.__struct_fields__},
            "completions_G": completions_G,
            "rewards_G": rewards_G,
        }
    )


def least_mean_logprob(judge: Node, group: RolloutGroup) -> float:
    """Of the rewarded completions, nats a token, under a node's policy."""
    trainer = judge.model._trainer
    foreign = RolloutGroup(
        **{**{name: getattr(group, name) for name in group.__struct_fields__}, "is_local": False}
    )
    batch = encode_batch([foreign], trainer._tokenizer, "std", trainer.policy.context_tokens)
    least = 0.0
    with torch.no_grad():
        for rows in cut_slices(batch.groups, 100_000, trainer.policy.device):
            logprobs_BT = trainer.policy.logprobs(rows)
            means_B = logprobs_BT.sum(dim=1) / rows.mask_BT.sum(dim=1)
            rewarded = means_B[rows.advantages_B > 0]
            least = min(least, float(rewarded.min()) if len(rewarded) else 0.0)
    return least


def part(values: list[bool]) -> str:
    return f"{100 * sum(values) / max(1, len(values)):5.1f} %"


def table(label: str, judge: Node, screens: dict[float, TextScreens], groups: list[RolloutGroup]) -> None:
    """One line: the part of the groups with signal that each setting holds up."""
    groups = [group for group in groups if group.has_signal]
    long = [part([bool(screens[factor].judge(group)[0]) for group in groups]) for factor in FACTORS]
    shares = [min(map(compressed_share, rewarded_texts(group))) for group in groups]
    repetitive = [part([share < limit for share in shares]) for limit in SHARES]
    least = [least_mean_logprob(judge, group) for group in groups]
    unlikely = [part([value < floor for value in least]) for floor in FLOORS]
    print(
        f"{label:46}", f"n={len(groups):4}", "long", *long, " rep", *repetitive, " unl", *unlikely, flush=True
    )


def main(count: int) -> None:
    """Print all tables."""
    print("long: factor", FACTORS, " rep: compressed share below", SHARES, " unl: mean logprob below", FLOORS)
    judges = {stage: node(stage, seed=1) for stage in STAGES}
    senders = {stage: list(node(stage, seed=2).groups(count)) for stage in STAGES}
    for judge_stage, judge in judges.items():
        own = list(judge.groups(150))
        screens = {}
        for factor in FACTORS:
            screens[factor] = TextScreens(TextLimits("warn", factor, "off", 0.0))
            for group in own:
                screens[factor].note_own(group)
        for stage, groups in senders.items():
            table(f"{judge_stage} judges {stage}", judge, screens, groups)
            for name, payload in PAYLOADS.items():
                table(
                    f"    {name}", judge, screens, [with_payload(g, payload) for g in groups if g.has_signal]
                )
    print("right answers of reasoning-gym, and the payload of ten sentences around them:")
    honest: list[float] = []
    carrying: list[float] = []
    for name in sorted(DATASETS):
        try:
            dataset = create_dataset(name, seed=5, size=20)
            entries = [dataset[index] for index in range(20)]
        except Exception as error:  # noqa: BLE001  # Some need files or programs; they are said.
            print(f"    {name}: {type(error).__name__}")
            continue
        for entry in entries:
            answer = entry["answer"] or entry["metadata"].get("example_answer")
            if answer:
                honest.append(compressed_share(str(answer)))
                carrying.append(compressed_share(PAYLOADS["ten sentences"](str(answer))))
    for label, values in (("honest", honest), ("ten sentences", carrying)):
        print(
            f"    {label:16} n={len(values)}",
            *(part([value < limit for value in values]) for limit in SHARES),
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
