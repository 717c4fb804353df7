import asyncio

import pytest

from swarmd.errors import WorkerError
from swarmd.rewards.messages import REGENERATE, RegenerateReply, ScoreReason, ScoreReply
from swarmd.rewards.verifier import VerifierPool
from swarmd.types import TaskReference

REFERENCE = TaskReference("bf", "d", 1, 0)


class FakeVerifier:
    """Answers when let go, or fails the first so many times."""

    def __init__(self, failures=0):
        self.failures = failures
        self.requests = []
        self.deadlines = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def call(self, method, request, timeout_seconds):
        self.requests.append(request)
        self.deadlines.append(timeout_seconds)
        await self.gate.wait()
        if self.failures:
            self.failures -= 1
            raise WorkerError("verifier died")
        if method is REGENERATE:
            return RegenerateReply(tuple(r.dataset for r in request.references))
        return ScoreReply("q", (1.0,) * len(request.completions_G), (None,) * len(request.completions_G))


async def test_requests_go_to_the_least_busy_verifier():
    verifiers = [FakeVerifier(), FakeVerifier()]
    pool = VerifierPool([v.call for v in verifiers], 10.0)
    for verifier in verifiers:
        verifier.gate.clear()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(6):
            tasks.create_task(pool.score(REFERENCE, ["a"]))
        await asyncio.sleep(0)
        assert [len(v.requests) for v in verifiers] == [3, 3]
        for verifier in verifiers:
            verifier.gate.set()


async def test_a_verifier_that_dies_once_is_asked_again():
    verifier = FakeVerifier(failures=1)
    pool = VerifierPool([verifier.call], 10.0)
    assert (await pool.score(REFERENCE, ["a", "b"])).rewards_G == (1.0, 1.0)
    assert len(verifier.requests) == 2
    assert pool.failures == 0


async def test_group_that_no_verifier_survives_is_answered_and_counted():
    verifier = FakeVerifier(failures=9)
    pool = VerifierPool([verifier.call], 10.0)
    reply = await pool.score(REFERENCE, ["a", "b"])
    assert reply == ScoreReply(None, (0.0, 0.0), (ScoreReason.CRASHED,) * 2)
    assert await pool.regenerate([REFERENCE]) == (None,)
    assert pool.failures == 2


async def test_every_call_has_a_deadline_beyond_the_verifiers_own():
    verifier = FakeVerifier()
    await VerifierPool([verifier.call], 10.0).regenerate([REFERENCE])
    assert verifier.deadlines[0] > 10.0


async def test_a_cancelled_request_no_longer_counts_as_pending():
    slow, fast = FakeVerifier(), FakeVerifier()
    pool = VerifierPool([slow.call, fast.call], 10.0)
    slow.gate.clear()
    task = asyncio.create_task(pool.score(REFERENCE, ["a"]))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    slow.gate.set()
    await pool.score(REFERENCE, ["a"])
    assert len(slow.requests) == 2


def test_a_pool_without_verifiers_is_a_mistake():
    with pytest.raises(ValueError, match="at least one"):
        VerifierPool([], 10.0)
