"""A real node whose generator or trainer is slowed: `python tests/benchmarks/slowed/node.py start ...`

A sampling call lasts at least SAMPLE_SECONDS and a training step at least STEP_SECONDS (environment),
as with larger models on devices of their own: what is missing is slept, and uses no processor. Nothing
else differs from `swarmd`; the worker modules beside this one wrap the ones of swarmd.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import swarmd.processes
from swarmd.__main__ import main
from swarmd.workers.supervisor import Worker

MODULES = {"swarmd.entrypoints.generator": "slowed_generator", "swarmd.entrypoints.trainer": "slowed_trainer"}


class _Worker(Worker):
    def __init__(self, name: str, module: str, *rest: Any, **options: Any) -> None:
        super().__init__(name, MODULES.get(module, module), *rest, **options)


if __name__ == "__main__":
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    swarmd.processes.Worker = _Worker  # type: ignore[misc]
    main()
