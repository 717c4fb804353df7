"""A real node whose generator or trainer is slowed: `python tests/benchmarks/slowed/node.py start ...`

A sampling call lasts at least SAMPLE_SECONDS and a training step at least STEP_SECONDS (environment),
as with larger models on devices of their own: what is missing is slept, and uses no processor. Nothing
else differs from `swarmd`; the worker modules beside this one wrap the ones of swarmd.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from wrapped_node import run_node  # The folder has to be on the path first.

if __name__ == "__main__":
    run_node(
        Path(__file__).parent,
        {
            "swarmd.entrypoints.generator": "slowed_generator",
            "swarmd.entrypoints.trainer": "slowed_trainer",
        },
    )
