"""A real node that tells what it is at: `python tests/faults/announcing/node.py start ...`

While it generates, trains, publishes weights or saves, a file of that name is in the folder ANNOUNCEMENTS
(environment). Publishing and saving are slowed a little, since a kill would hardly ever meet them on a model
of one million parameters. Nothing else differs from `swarmd`: the modules beside this one wrap its own.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import swarmd.processes
from swarmd.__main__ import main
from swarmd.workers.supervisor import Worker

MODULES = {
    "swarmd.entrypoints.generator": "announcing_generator",
    "swarmd.entrypoints.trainer": "announcing_trainer",
}


class _Worker(Worker):
    def __init__(self, name: str, module: str, *rest: Any, **options: Any) -> None:
        super().__init__(name, MODULES.get(module, module), *rest, **options)


if __name__ == "__main__":
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    swarmd.processes.Worker = _Worker  # type: ignore[misc]
    main()
