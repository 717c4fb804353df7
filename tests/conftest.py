import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# What tests of several rooms share is imported by its name.
sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("engine_contract")

# A busy machine is no failure: property tests are not timed. `make test` tries the same examples each
# time, so that a change fails by its own fault; --hypothesis-profile explore (`make fuzz`) tries new ones.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", _UNTIMED, derandomize=True)
settings.register_profile("explore", _UNTIMED, max_examples=1000, print_blob=True)
settings.load_profile("same")

# Under nohup, or in the background of a script, these are ignored, and a node started here would ignore
# them, too. A handler is not inherited.
for _number in (signal.SIGHUP, signal.SIGINT):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, lambda *_: None)
