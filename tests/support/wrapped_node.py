"""A real node some of whose worker processes run another module, which wraps the one of swarmd."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import swarmd.processes
from swarmd.__main__ import main as start
from swarmd.workers.supervisor import Worker

__all__ = ["run_node"]


def run_node(folder: Path, instead: Mapping[str, str]) -> None:
    """`swarmd` with the arguments of this process. `instead`: modules of swarmd and those of `folder` that
    its workers run in their place.
    """

    class Wrapped(Worker):
        def __init__(self, name: str, module: str, *rest: Any, **options: Any) -> None:
            super().__init__(name, instead.get(module, module), *rest, **options)

    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    swarmd.processes.Worker = Wrapped  # type: ignore[misc]
    start()
