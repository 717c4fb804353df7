"""`swarmd`, with `spoilt_generator` as its generator process."""

from typing import Any

from swarmd.__main__ import main
from swarmd.workers.connection import WorkerProcess


class SpoiltProcess(WorkerProcess):
    @classmethod
    async def start(cls, name: str, module: str, *rest: Any) -> "WorkerProcess":
        return await super().start(name, "spoilt_generator" if name == "generator" else module, *rest)


if __name__ == "__main__":
    import swarmd.workers.supervisor

    swarmd.workers.supervisor.WorkerProcess = SpoiltProcess  # type: ignore[misc]
    main()
