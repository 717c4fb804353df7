"""What vLLM's processes are given to read."""

import os
import subprocess
import sys

from swarmd.generation.vllm_choice import environment

FAULTS = """
import resource
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bytearray(64_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(device: str) -> int:
    """Of a process that takes 64 MB for the third time, having given them back."""
    given = {"PATH": os.environ["PATH"], **environment(1, device, "/nowhere")}
    done = subprocess.run([sys.executable, "-c", FAULTS], env=given, capture_output=True, check=True)
    return int(done.stdout)


def test_memory_of_an_update_is_kept_for_the_next_one_on_a_cpu() -> None:
    assert page_faults("cpu") < 100 < page_faults("cuda:0")
