"""A daemon that starts one worker and says its process id. The tests kill it."""

import asyncio

from child_worker import ECHO, Text

from swarmd.workers.supervisor import Worker, WorkerLimits


async def main() -> None:
    async def on_start(worker: Worker) -> None:
        await worker.call(ECHO, Text("up"), 30)
        print(worker.pid, flush=True)

    await Worker("child", "child_worker", WorkerLimits(), on_start).run()


asyncio.run(main())
