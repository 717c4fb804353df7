import asyncio
import contextlib
import io
import os
import pty

import msgspec
import pytest
from rich.console import Console
from sample_status import PEER_ID, sample_peers, sample_status

from swarmd.monitor.history import RoundRecord
from swarmd.monitor.screen import Screen, View, render, round_line
from swarmd.monitor.status import BootstrapStatus, PeerStatus, RewardStatus, WorkerStatus


def drawn(view, width=80, height=24):
    console = Console(width=width, height=height, file=io.StringIO(), color_system=None)
    console.print(render(view, width, height))
    return console.file.getvalue()


FULL = View(sample_status(), sample_peers())
CROWD = View(
    sample_status(
        peers=40,
        problems=("a long problem " * 20,) * 5,
        waiting_for="trainer waits for 2 more rollout groups",
    ),
    tuple(
        PeerStatus(peer_id=PEER_ID[:-2] + f"{n:02}", name="狐" * 40, model="m" * 90, round=n, accepted=n)
        for n in range(40)
    ),
    footer="f" * 300,
)
EMPTY = View(
    sample_status(state="starting", round=0, reward=RewardStatus(), workers={}, peers=0, trained_groups=0)
)


@pytest.mark.parametrize("view", [FULL, CROWD, EMPTY])
@pytest.mark.parametrize("size", [(80, 24), (120, 40), (60, 18), (200, 60)])
def test_every_view_fits_its_terminal(view, size):
    width, height = size
    lines = drawn(view, width, height).splitlines()
    assert len(lines) <= height
    console = Console(width=width)
    assert max(console.measure(line).maximum for line in lines if line) <= width


def test_the_screen_shows_what_the_issue_asks_for():
    text = drawn(FULL)
    for part in (
        "training", "round          60 of 100", "policy version 58", "0.366", "held-out tasks 0.190",
        "2 connected", "owl", "140 groups", "44% of groups", "28 filled", "3 own, 118 from peers",
        "27.3 rounds/min", "1,240 tokens/s",
        "● trainer idle 12%", "● generator ↻1 idle 2%", "█",
    ):  # fmt: skip
        assert part in text, part


def test_a_larger_terminal_gets_a_taller_chart():
    assert drawn(FULL, 120, 40).count("▄") > 0
    tall, short = (sum("█" in line for line in drawn(FULL, 120, h).splitlines()) for h in (40, 24))
    assert tall > short


def test_waiting_and_problems_are_in_words():
    view = View(sample_status(waiting_for="trainer waits for 2 more rollout groups", problems=("disk full",)))
    text = drawn(view)
    assert "Trainer waits for 2 more rollout groups." in text
    assert "! disk full" in text


def test_while_it_starts_each_worker_says_what_it_does():
    workers = {"trainer": WorkerStatus(pid=1, state="starting", doing="loading model")}
    text = drawn(View(sample_status(state="starting", workers=workers)))
    assert "○ trainer" in text
    assert "Starting: trainer loading model." in text


def test_unreachable_bootstrap_peers_are_retried_in_sight():
    dead = BootstrapStatus(address="/ip4/10.0.0.9/tcp/1", is_reachable=False, last_error="refused")
    assert "0 connected, retrying" in drawn(View(sample_status(peers=0, bootstrap=(dead,))))


def test_an_isolated_node_shows_nothing_about_peers_groups():
    text = drawn(View(sample_status(is_isolated=True, peers=0)))
    assert "alone, no network" in text
    assert "from peers" not in text


def test_a_peers_name_is_shown_as_text_whatever_it_contains():
    peer = PeerStatus(peer_id=PEER_ID, name="[bold]x\x1b[2J", model="\x07m", accepted=1)
    text = drawn(View(sample_status(), (peer,)))
    assert "[bold]x" in text
    assert "\x1b" not in text
    assert "\x07" not in text


def test_a_round_is_one_line_without_a_terminal():
    record = RoundRecord(
        round=7, ended_at=0.0, policy_version=6, own_reward=0.25, eval_reward=0.125, local_groups=5,
        external_groups=3, groups_with_signal=6, peers=2, buffer_local=1, buffer_external=30,
        step_seconds=0.5,
    )  # fmt: skip
    line = round_line(record, sample_status(rounds=100))
    assert line == (
        "round 7/100, own reward 0.250, held-out 0.125, groups 5 own + 3 from peers, 6 with signal, "
        "2 peers, buffer 1+30, step 0.50 s, 27.3 rounds/min"
    )


@contextlib.contextmanager
def terminal():
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as file:
        yield leader, Console(file=file, force_terminal=True, width=80, height=24)
    os.close(leader)


async def test_the_screen_follows_the_view_and_gives_the_terminal_back():
    with terminal() as (leader, console):
        rounds = iter(range(1, 1000))
        screen = Screen(
            console, lambda: View(msgspec.structs.replace(sample_status(), round=next(rounds), rounds=0))
        )
        os.set_blocking(leader, False)
        task = asyncio.create_task(screen.run())
        seen = b""
        for _ in range(25):
            await asyncio.sleep(0.1)
            with contextlib.suppress(BlockingIOError):
                seen += os.read(leader, 1 << 20)
        task.cancel()
        while not task.done():
            await asyncio.sleep(0.05)
            with contextlib.suppress(BlockingIOError):
                seen += os.read(leader, 1 << 20)
        with contextlib.suppress(BlockingIOError):
            seen += os.read(leader, 1 << 20)
    assert b"\x1b[?1049h" in seen  # The alternate screen is entered
    assert b"\x1b[?1049l" in seen  # and left.
    assert seen.count(b"policy version") >= 3


async def test_a_terminal_that_takes_no_output_holds_up_nobody():
    with terminal() as (leader, console):
        screen = Screen(console, lambda: FULL)
        task = asyncio.create_task(screen.run())
        await asyncio.sleep(2.0)  # Nobody reads: the terminal's buffer is full by now.
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait_for(task, 5)
        assert task.cancelled()
        os.set_blocking(leader, False)
        for _ in range(20):
            await asyncio.sleep(0.05)
            with contextlib.suppress(BlockingIOError):
                os.read(leader, 1 << 20)
