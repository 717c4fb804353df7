import subprocess
import sys

import msgspec

from swarmd.rewards.probe import SandboxReport, probe_sandbox

WITHOUT_LAYERS = """
import sys
sys.modules["pyseccomp"] = sys.modules["landlock"] = None
from swarmd.rewards import probe, sandbox
sandbox._enter_namespaces = lambda: (_ for _ in ()).throw(OSError(1, "no"))
probe.main()
"""


def test_layers_are_tried_and_nothing_is_open():
    report = probe_sandbox()
    assert {"rlimits", "no_new_privs"} <= set(report.layers)
    assert report.open_ways == ()


def test_what_stays_open_without_layers_is_said():
    done = subprocess.run([sys.executable, "-c", WITHOUT_LAYERS], capture_output=True, check=True, timeout=60)
    report = msgspec.json.decode(done.stdout, type=SandboxReport)
    assert [line.split(":")[0] for line in report.missing] == ["seccomp", "landlock", "namespaces"]
    # No descriptor can be added: neither a socket nor a file.
    assert not {"network", "files", "own files"} & set(report.open_ways)
