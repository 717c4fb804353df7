"""A daemon that starts one worker and says its process id. The tests kill it."""

import asyncio
import sys

from child_worker import FORK, Text

from swarmd.workers.supervisor import Worker, WorkerLimits


async def main(leave_grandchild: bool) -> None:
    async def on_start(worker: Worker) -> None:
        if leave_grandchild:
            await worker.call(FORK, Text(""), 10)
        print(worker.pid, flush=True)

    await Worker("child", "child_worker", WorkerLimits(), on_start).run()


asyncio.run(main("--grandchild" in sys.argv))
