"""Faults happen at random moments. Their seed is printed; `SEED=N make test-faults` repeats them."""

import os
import random
import time

import pytest
from node_fixtures import free_ports, gone, make_node, one_thread

__all__ = ["free_ports", "gone", "make_node", "moments", "one_thread"]

SEED = int(os.environ.get("SEED") or time.time())


def pytest_report_header() -> str:
    """Named before anything can go wrong."""
    return f"faults: SEED={SEED}"


@pytest.fixture
def moments(request: pytest.FixtureRequest) -> random.Random:
    """Chooses the moments of one test."""
    return random.Random(f"{SEED}/{request.node.name}")
