import pytest

from swarmd.config import Config
from swarmd.simulate.verifier import VerifierProcess
from swarmd.tasks.manifest import Manifest


@pytest.fixture(scope="package")
def verifier():
    """One verifier process for all swarms of these tests."""
    with VerifierProcess(Config(), Manifest.load("tiny")) as running:
        yield running
