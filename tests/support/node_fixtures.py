"""Fixtures for tests with real node processes. The conftest of such tests imports them."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from node_process import NodeProcess, all_gone


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[..., NodeProcess]]:
    """Makes nodes with homes of their own; whatever still runs at the end is killed."""
    nodes: list[NodeProcess] = []

    def make(name: str, *arguments: str, model: str = "tiny") -> NodeProcess:
        node = NodeProcess(tmp_path / name, list(arguments), model)
        nodes.append(node)
        return node

    yield make
    for node in nodes:
        node.kill()


@pytest.fixture
def free_ports() -> Callable[[int], list[int]]:
    """TCP ports of the loopback address that nobody has at this moment."""

    def find(count: int) -> list[int]:
        with ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
            for listener in sockets:
                listener.bind(("127.0.0.1", 0))
            return [int(listener.getsockname()[1]) for listener in sockets]

    return find


@pytest.fixture
def gone() -> Callable[[list[psutil.Process]], bool]:
    """See all_gone."""
    return all_gone


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Node processes of one torch thread each: two cores are shared by many."""
    monkeypatch.setitem(os.environ, "OMP_NUM_THREADS", "1")
