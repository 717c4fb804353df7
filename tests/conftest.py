import sys
from pathlib import Path

import pytest

# What tests of several rooms share is imported by its name.
sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("engine_contract")
