"""Answers that are programs, for every dataset that would run them, through the real verifier process.

Each attempt is written in Python, since that is what the library's scorers evaluate. The first test shows
that the attempts are real: without swarmd the library does run them.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
from contextlib import asynccontextmanager

import psutil
import pytest
import pytest_asyncio
from reasoning_gym.factory import DATASETS

from swarmd.rewards.messages import INITIALISE, ScoreReason, VerifierSettings
from swarmd.rewards.verifier import VerifierPool
from swarmd.tasks.manifest import task_digest
from swarmd.tasks.reasoning_gym import READERS
from swarmd.types import TaskReference, TaskSpec
from swarmd.workers.supervisor import Worker, WorkerLimits

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODULES = {module.__name__ for module in READERS}
EVALUATING = sorted(name for name, (dataset, _) in DATASETS.items() if dataset.__module__ in MODULES)
SPECS = {name: TaskSpec(name, {}, 1.0, task_digest(name, {}, "0.1.25")) for name in EVALUATING}
# Another one for the innocent groups before and after, which share a process with others.
SPECS["chain_sum"] = TaskSpec("chain_sum", {}, 1.0, task_digest("chain_sum", {}, "0.1.25"))

RUN_IN_THE_LIBRARY = """
import sys
import reasoning_gym
dataset = reasoning_gym.create_dataset(sys.argv[1], seed=5, size=1)
dataset.score_answer(sys.argv[2], dataset[0])
"""
ANSWER_BY_THE_LIBRARY = """
import json, sys
import reasoning_gym
datasets = {name: reasoning_gym.create_dataset(name, seed=5_000_000, size=1) for name in sys.argv[1:]}
items = {name: dataset[0] for name, dataset in datasets.items()}
print(json.dumps({n: i["answer"] or i["metadata"]["example_answer"] for n, i in items.items()}))
"""
FIXED_HASHES = {"PYTHONHASHSEED": "0"}
OS = "__import__('os')"
WIN = "lambda *a: 1.0"
TASK = "__import__('sys').modules['swarmd.tasks.reasoning_gym'].Task"
CLASSES = "().__class__.__base__.__subclasses__()"


def reference(dataset):
    return TaskReference(dataset, SPECS[dataset].digest, 5_000_000, 0)


def attempts(mark, secret, port, daemon_pid, worker_pid):
    """What a program would try, each as an expression."""
    return {
        "create a file": f"open('{mark}', 'w').write('x')",
        "start a program": f"{OS}.system('touch {mark}')",
        "start one by another way": f"__import__('subprocess').run(['touch', '{mark}'])",
        "fork": f"{OS}.fork()",
        "remove the key": f"{OS}.remove('{secret}')",
        "overwrite the key": f"open('{secret}', 'w').write('')",
        "read the key": f"1 / ('secret' in open('{secret}').read())",
        "read the environment": f"{OS}.environ['SWARMD_TEST_TOKEN']",
        "read the daemon's environment": f"open('/proc/{daemon_pid}/environ').read()",
        "read the daemon's memory": f"open('/proc/{daemon_pid}/mem', 'rb').read(1)",
        "connect": f"__import__('socket').create_connection(('127.0.0.1', {port}))",
        "kill the daemon": f"{OS}.kill({daemon_pid}, 15)",
        "kill the verifier": f"{OS}.kill({worker_pid}, 9)",
        "kill the parent": f"{OS}.kill({OS}.getppid(), 9)",
        "write into every descriptor": f"[{OS}.write(fd, b'junk' * 99) for fd in range(20)]",
        "forge a record": f"{OS}.write(3, __import__('struct').pack('>IBId', 1, 0, 8, 1.0))",
        "end without a word": f"{OS}._exit(0)",
        "crash": "__import__('ctypes').string_at(0)",
        "win by a patched scorer": f"setattr({TASK}, 'score', {WIN})",
        "win by a patched float": f"setattr(__import__('builtins'), 'float', {WIN})",
        "win by what is in memory": "[o for o in __import__('gc').get_objects() if 'answer' in str(o)]",
        "win by the frames": "__import__('sys')._getframe(3).f_locals['entry']['answer']",
        "find a way by classes": f"[c for c in {CLASSES} if c.__name__ == 'Popen'][0](['touch', '{mark}'])",
        "hide in a format": f"'{{0.__class__.__base__}}'.format({OS})",
        "call by a decorator": f"(lambda f: f())(lambda: open('{mark}', 'w'))",
        "import by a name": f"__builtins__['__import__']('os').system('touch {mark}')",
    }


@asynccontextmanager
async def running_verifier():
    ready = []

    async def initialise(worker):
        settings = VerifierSettings(tuple(SPECS.values()), True, 4.0, 400_000_000)
        ready.append(await worker.call(INITIALISE, settings, 120.0))

    limits = WorkerLimits(start_timeout_seconds=120.0, max_fast_failures=1)
    worker = Worker(
        *("verifier", "swarmd.entrypoints.verifier", limits, initialise),
        environment=FIXED_HASHES,
        is_trusted=False,
    )
    running = asyncio.create_task(worker.run())
    try:
        await worker.wait_ready()
        yield VerifierPool([worker.call], 4.0), worker
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def verifier():
    os.environ["SWARMD_TEST_TOKEN"] = "secret"
    try:
        async with running_verifier() as running:
            yield running
    finally:
        del os.environ["SWARMD_TEST_TOKEN"]


@pytest.fixture(scope="module")
def right_answers():
    """As the library gives them, by a process of the same hash seed: one dataset depends on it."""
    environment = os.environ | FIXED_HASHES
    program = [sys.executable, "-c", ANSWER_BY_THE_LIBRARY, *SPECS]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


async def test_the_library_itself_runs_such_answers(tmp_path):
    marks = {name: tmp_path / name for name in EVALUATING}
    programs = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", RUN_IN_THE_LIBRARY, name, f"open('{mark}', 'w').close()")
        )
        for name, mark in marks.items()
    ]
    assert [await program.wait() for program in programs] == [0] * len(programs)
    assert [name for name, mark in marks.items() if not mark.exists()] == []


@pytest.mark.parametrize("dataset", EVALUATING)
async def test_no_answer_reaches_anything_outside_or_a_reward(dataset, verifier, right_answers, tmp_path):
    pool, worker = verifier
    secret, mark = tmp_path / "identity.key", tmp_path / "mark"
    secret.write_text("secret")
    worker_pid, descendants = worker.pid, set()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        tried = attempts(mark, secret, listener.getsockname()[1], os.getpid(), worker_pid)
        right = right_answers[dataset]
        # Alone, and as part of what would be right.
        completions = [*tried.values(), *(f"{right} + {attempt}" for attempt in tried.values()), "0", right]
        reply = await pool.score(reference(dataset), completions)
        descendants |= {child.pid for child in psutil.Process(worker_pid).children(recursive=True)}
        with pytest.raises(BlockingIOError):
            listener.accept()
    won = [text for text, reward in zip(completions[:-1], reply.rewards_G, strict=False) if reward > 0]
    assert won == []
    assert reply.reasons_G == (None,) * len(completions)
    # The last of the group is right, and nothing that stood before it took that away.
    assert reply.rewards_G[-1] == 1.0
    assert not mark.exists()
    assert secret.read_text() == "secret"
    assert worker.pid == worker_pid
    assert worker.restarts == 0
    assert len(descendants) <= 1  # The child that serves all groups.


@pytest.mark.parametrize("dataset", [*EVALUATING, "chain_sum"])
async def test_no_effect_outlives_the_score(dataset, verifier, right_answers):
    pool, _ = verifier
    reply = await pool.score(reference(dataset), [f"setattr({TASK}, 'score', {WIN})", "0"])
    assert reply.rewards_G == (0.0, 0.0)
    for name in (dataset, "chain_sum"):
        reply = await pool.score(reference(name), ["nonsense", right_answers[name]])
        assert reply.rewards_G == (0.0, 1.0)


async def test_answers_that_hide_what_they_count_as_do_not_win(verifier):
    pool, _ = verifier
    reply = await pool.score(
        reference("puzzle24"), ["0x18 # 1 2 3 4", "24 # 1 2 3", "0b11000#1 2 3 4", "1_2+1_2 # 1 2 3 4"]
    )
    assert max(reply.rewards_G) == 0.0
    question = (await pool.score(reference("simple_integration"), ["0"])).question
    integrand = question.split("integral: ∫ ")[-1].split(" dx")[0]
    reply = await pool.score(reference("simple_integration"), [f"Integral({integrand}, x)", "Integral(x)"])
    assert max(reply.rewards_G) == 0.0


@pytest.mark.parametrize("dataset", EVALUATING)
async def test_bombs_of_time_and_memory_cost_only_themselves(dataset, verifier, right_answers):
    pool, worker = verifier
    bombs = [
        "9**9**9**9",
        "'a' * 10**10",
        "(" * 5000,
        "[" * 5000,
        "-" * 9000 + "1",
        "[0] * 10**10",
        "1" * 60_000,
    ]
    reply = await pool.score(reference(dataset), [*bombs, right_answers[dataset]])
    assert reply.rewards_G == (0.0,) * len(bombs) + (1.0,)
    assert {ScoreReason(reason) for reason in reply.reasons_G if reason} <= {
        ScoreReason.MEMORY,
        ScoreReason.CRASHED,
        ScoreReason.INVALID,
    }
    assert worker.restarts == 0
