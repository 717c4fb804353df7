"""What the sandbox costs per scored completion: groups through a pool of verifier processes with and without
it, on the nine tasks of sapo-nine, in turns.

Without it the same process scores in itself, open and without limits. Run:
python tests/benchmarks/bench_rewards.py [--groups N] [--rounds N]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from swarmd.rewards.messages import INITIALISE, SCORE, VerifierReady, VerifierSettings
from swarmd.rewards.scorer import Scorer, ScoringWork
from swarmd.rewards.verifier import VerifierPool
from swarmd.tasks.manifest import Manifest
from swarmd.tasks.prompt import extract_answer
from swarmd.tasks.reasoning_gym import TaskLibrary
from swarmd.tasks.source import TaskSource
from swarmd.types import TaskReference
from swarmd.workers.process import handle, serve, worker_argument_fd
from swarmd.workers.supervisor import Worker, WorkerLimits

FOLDER = Path(__file__).resolve().parent
POOL = 2
GROUP_SIZE = 8
MANIFEST = Manifest.load("sapo-nine")
Group = tuple[TaskReference, tuple[str, ...]]


class InProcess:
    """Runs the items where it stands."""

    def __init__(self, work: ScoringWork) -> None:
        self._work = work

    def run(self, request: bytes, count: int, *, alone: bool = False) -> list[bytes]:
        """One result per item; nothing here is hostile."""
        item = self._work(request)
        return [item(i) for i in range(count)]


class OpenVerifier:
    """A verifier process without a sandbox."""

    def initialise(self, settings: VerifierSettings) -> VerifierReady:
        library = TaskLibrary(settings.tasks)
        for number in range(len(settings.tasks)):
            library.warm_up(number)
        self.scorer = Scorer(InProcess(ScoringWork(library, extract_answer)), strict=settings.strict)
        return VerifierReady(())

    def score(self, request):
        return self.scorer.score(request.reference, request.completions_G)


@asynccontextmanager
async def pool(module: str) -> AsyncIterator[VerifierPool]:
    """A pool of ready verifiers of one kind."""

    async def initialise(worker: Worker) -> None:
        settings = VerifierSettings(MANIFEST.tasks, True, 10.0, 2_000_000_000)
        await worker.call(INITIALISE, settings, 300.0)

    limits = WorkerLimits(start_timeout_seconds=300.0)
    # Its folder, so that the open verifier is found as a module.
    path = os.pathsep.join((str(FOLDER), os.environ.get("PYTHONPATH", "")))
    workers = [
        Worker(f"verifier-{i}", module, limits, initialise, environment={"PYTHONPATH": path})
        for i in range(POOL)
    ]
    running = [asyncio.create_task(worker.run()) for worker in workers]
    try:
        await asyncio.gather(*(worker.wait_ready() for worker in workers))
        yield VerifierPool([worker.call for worker in workers], 10.0)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def completions_per_second(verifiers: VerifierPool, groups: Sequence[Group]) -> float:
    """With four groups in flight, as a node has them."""
    waiting = list(groups)
    start = time.perf_counter()

    async def work() -> None:
        while waiting:
            reference, completions_G = waiting.pop()
            reply = await verifiers.score(reference, completions_G)
            assert reply.question is not None
            assert len(reply.rewards_G) == GROUP_SIZE

    await asyncio.gather(*(work() for _ in range(2 * POOL)))
    return len(groups) * GROUP_SIZE / (time.perf_counter() - start)


def sample_groups(count: int) -> list[Group]:
    """Right answers, right ones with words around them, and wrong ones, as a model gives them."""
    library = TaskLibrary(MANIFEST.tasks)
    groups = []
    for reference in TaskSource(MANIFEST, "bench", 0).draw(count):
        task = library.task(reference)
        assert task is not None
        right = task.answer or ""
        texts = (
            right,
            f"so it is <answer>{right}</answer>",
            "12",
            "<answer>-7/3</answer>",
            right[::-1],
            "(A -> B)",
        )
        groups.append((reference, (*texts, f"The answer is {right}.", "I do not know. " * 20)))
    return groups


async def measure(groups: Sequence[Group], rounds: int) -> None:
    """Prints rates and their ratio, round by round."""
    async with AsyncExitStack() as stack:
        closed = await stack.enter_async_context(pool("swarmd.entrypoints.verifier"))
        open_ = await stack.enter_async_context(pool("bench_rewards"))
        ratios, rates = [], []
        for number in range(rounds + 1):
            without = await completions_per_second(open_, groups)
            within = await completions_per_second(closed, groups)
            if number:  # The first warms both.
                ratios.append(within / without)
                rates.append((within, without))
    within, without = (statistics.median(column) for column in zip(*rates, strict=True))
    print(f"completions a second, pool of {POOL}: {within:.0f} in the sandbox, {without:.0f} without")
    print(f"ratio: median {statistics.median(ratios):.2f}, from {min(ratios):.2f} to {max(ratios):.2f}")
    print(f"cost of the sandbox for a completion: {(1 / within - 1 / without) * 1e6:.0f} microseconds")


def main() -> None:
    """As a worker when the supervisor starts it, else the benchmark."""
    if "--fd" in sys.argv:
        verifier = OpenVerifier()
        serve(worker_argument_fd(), [handle(INITIALISE, verifier.initialise), handle(SCORE, verifier.score)])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=900)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    asyncio.run(measure(sample_groups(arguments.groups), arguments.rounds))


if __name__ == "__main__":
    main()
