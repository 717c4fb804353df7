"""First thing a worker process runs: `python -m swarmd.workers.launch MODULE --fd N --parent PID`.

Importing torch takes seconds. This binds the process to its parent and starts the signs of life
before that, and then runs the entrypoint module as if it had been started itself. When the module
is done or has failed the process ends at once: a worker cleans up in its own code and not in exit handlers,
which would also have the last word in its log.
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback

from swarmd.workers.process import worker_argument_fd

NICENESS = 5
"""Workers compute without pause; the daemon must answer meanwhile, and so must the user's desktop."""


def main() -> None:
    """Runs the module named by the first argument with the rest of them."""
    module = sys.argv.pop(1)
    os.nice(NICENESS)
    worker_argument_fd()
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except Exception:  # noqa: BLE001 # Whatever it is, it is the last that the log shall say.
        traceback.print_exc()
        code = 1
    # Taking torch apart takes a second or more and frees nothing that the kernel would not.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
