"""A signal while a node starts: it is not lost, whatever an import makes of the exception."""

import signal
import sys
import time
from collections.abc import Iterator

import pytest

from swarmd.__main__ import _Interruption


@pytest.fixture
def interruption(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Interruption]:
    monkeypatch.setattr(sys, "argv", ["swarmd", "start"])
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM)}
    made = _Interruption()
    signal.signal(signal.SIGINT, made.on_signal)
    yield made
    made.rest()
    for number, handler in before.items():
        signal.signal(number, handler)


def test_an_interrupt_that_is_swallowed_is_raised_again(interruption: _Interruption) -> None:
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            time.sleep(10)
    interruption.rest()
    time.sleep(1)


def test_a_node_that_listens_by_then_gets_the_signal(interruption: _Interruption) -> None:
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    heard: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    until = time.monotonic() + 10
    while not heard and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(1)
    assert heard == [signal.SIGINT]
